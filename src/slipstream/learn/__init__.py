"""Learning: advantages, losses, optimisers, and the loop that ties collecting to them."""
