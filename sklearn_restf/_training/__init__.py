"""Full-batch gradient descent: objective, step rule, stopping, and the loops that use them."""
