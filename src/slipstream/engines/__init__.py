"""How gradient steps are taken: fused kernels, torch, and everything on one device."""
