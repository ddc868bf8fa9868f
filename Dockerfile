# An image with what `make release` has put into dist/: geval as a wheel, and the versions that it was released with.
#
#     make release
#     docker build --tag geval .
#     docker run --rm --env OPENAI_API_KEY --volume "$PWD:/work" --user "$(id -u)" geval run gevalconfig.yaml
FROM python:3.12-slim-bookworm AS build
COPY dist/*.whl dist/constraints.txt /dist/
RUN python -m venv /opt/geval \
    && /opt/geval/bin/pip install --no-cache-dir --constraint /dist/constraints.txt "$(echo /dist/*.whl)[js,server]"

FROM python:3.12-slim-bookworm
COPY --from=build /opt/geval /opt/geval
RUN useradd --uid 10001 --create-home geval
ENV PATH="/opt/geval/bin:$PATH" PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /work
ENTRYPOINT ["geval"]
CMD ["--help"]
