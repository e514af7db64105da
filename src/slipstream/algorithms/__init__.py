"""Learning algorithms: PPO, SAC, cloning, and the functions they are made of."""
