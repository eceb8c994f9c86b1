"""The parts of operators.py: the systems to solve (`problems`), and one solve (`worker`)."""
