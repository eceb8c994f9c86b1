""" "Deep learning theory" (Telgarsky, 2023): its claims, its experiments, and networks near
initialisation (`near_init`).
"""
