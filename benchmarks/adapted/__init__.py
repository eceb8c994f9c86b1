"""The parts of adapters.py: what is computed (`settings`), who computes it (`contenders`,
`handwritten`, `mixed`), whether it is right (`reference`), how long it takes (`rounds`), and how
many requests threads can serve (`serving`)."""
