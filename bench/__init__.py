"""Benchmarks: arms (one process, one measurement), the runner that compares them, and their records."""
