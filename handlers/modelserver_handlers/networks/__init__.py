"""Networks: their weights, how they are made quick, and when they are ready."""
