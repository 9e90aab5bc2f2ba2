"""Performance, measured as ratios against peers in one run."""
