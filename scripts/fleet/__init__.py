"""`make fleet`: several servers on this machine behind a load balancer, with Prometheus."""
