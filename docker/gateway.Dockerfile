# The build context is `client/`; see compose.yaml.
FROM python:3.12-slim

COPY . /opt/inflight-client
RUN pip install --no-cache-dir '/opt/inflight-client[cli,gateway,tracing]'

USER nobody
EXPOSE 9000
ENTRYPOINT ["inflight-gateway"]
