"""What stands in for a part of the engine, in tests and lessons.

mock_llama        a model whose every score can be worked out
scheduler_driver  what is around a scheduler
mock_bridge       what is around a Bridge
"""
