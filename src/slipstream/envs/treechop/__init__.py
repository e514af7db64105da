"""Treechop: gather logs in a first-person view, with the spaces of MineRLTreechop."""
