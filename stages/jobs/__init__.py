"""Sending work to a Ray cluster: what is sent (`bundle`), and the Jobs API (`client`). Both halves submit through it.

Ray itself is not needed where one submits from, nor its version: the API is HTTP.
"""
