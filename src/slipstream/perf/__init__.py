"""Speed: where time goes, what would be faster here, and proof that it is."""
