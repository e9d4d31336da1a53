"""How methods weigh what they learn, on six kinds of task and a scripted service. Simulated."""
