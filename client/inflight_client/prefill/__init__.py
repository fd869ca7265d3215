"""Requests whose prompt one server computes and another one continues."""
