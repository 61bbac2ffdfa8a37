"""What the numbers in the documentation come from; each program prints ratios measured in one run."""
