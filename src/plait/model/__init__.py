"""A model as it is: the BranchGraph, its capture from an ordinary module, and the stages cut from it."""
