"""lily beside other engines on the same weights: speed and error in one record."""
