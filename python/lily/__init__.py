"""lily: the fastest, most trustworthy way to run Qwen3.6-35B-A3B and its family from Python."""
