# The service in a container. It is linted, not run, in this repository's tests: see docs/service.md.
FROM python:3.11-slim

# A user of its own: nothing in the container needs more.
RUN useradd --create-home --uid 10001 headstart
WORKDIR /app
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[postgres]'

# By number: a host need not know the name.
USER 10001
VOLUME ["/models"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
# Listening on all addresses needs a token: make one with `headstart token create`.
ENTRYPOINT ["headstart"]
CMD ["serve", "/models/model.headstart", "--host", "0.0.0.0", "--port", "8000"]
