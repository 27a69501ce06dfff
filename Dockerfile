# Image of `departing serve`; docs/howto/deploy.md describes how to run it.
ARG PYTHON=3.13
FROM python:${PYTHON}-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml ./
# Dependencies first, without the source: their layer stays in the cache while only the source changes. The environment
# has no pip and no tests of libraries. Its files are compiled here, because the root file system of the container may be
# read-only.
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; print(*(r for r in p['dependencies'] + e['serve'] + e['postgres'] + e['otel'] if not r.startswith(p['name'])), sep='\n')" > requirements.txt \
    && python -m venv --without-pip /opt/departing \
    && pip --python /opt/departing/bin/python install --no-cache-dir --no-compile -r requirements.txt \
    && find /opt/departing -regex '.*/\(numba\|llvmlite\|matplotlib\|scipy/.*\)/tests' -prune -exec rm -r {} + \
    && /opt/departing/bin/python -m compileall -q /opt/departing/lib
COPY README.md LICENSE ./
COPY src src
# hadolint ignore=DL3013
RUN pip --python /opt/departing/bin/python install --no-cache-dir --no-compile '.[postgres,otel]' \
    && /opt/departing/bin/python -m compileall -q /opt/departing/lib

FROM python:${PYTHON}-slim-bookworm
LABEL org.opencontainers.image.title="departing" \
    org.opencontainers.image.description="Recommendations for users who may depart, over HTTP" \
    org.opencontainers.image.licenses="MIT AND CC-BY-4.0"
# A fixed ID, for the owner of mounted volumes and for `runAsUser` of Kubernetes.
RUN groupadd --gid 10001 departing \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin departing \
    && install -d -m 0700 -o 10001 -g 10001 /var/lib/departing /var/cache/departing
COPY --from=build /opt/departing /opt/departing
ENV PATH=/opt/departing/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    DEPARTING_PORT=8080 \
    DEPARTING_STORE=/var/lib/departing/departing.sqlite \
    NUMBA_CACHE_DIR=/var/cache/departing \
    MPLCONFIGDIR=/tmp
USER 10001:10001
WORKDIR /var/lib/departing
# The store, and compiled functions; everything else is read-only, except /tmp.
VOLUME ["/var/lib/departing", "/var/cache/departing"]
EXPOSE 8080
# The port of the environment, so set DEPARTING_PORT rather than --port. Liveness only: a database that is down is no reason to restart the container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client as h, os; c = h.HTTPConnection('127.0.0.1', int(os.environ['DEPARTING_PORT']), timeout=4); c.request('GET', '/live'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["departing", "serve", "--host", "0.0.0.0"]
