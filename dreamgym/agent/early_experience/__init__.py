"""Early experience: branches of demonstrations, and what is learned from them."""
