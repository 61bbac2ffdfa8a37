"""Networks: weights, optimisation and readiness."""
