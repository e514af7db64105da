"""Action maps and image frames of Minecraft-like games."""
