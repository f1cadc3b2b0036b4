# The demo and all commands, without a Python of your own:
#   docker build --tag uneven .
#   docker run --rm uneven
# With CUDA: docker build --build-arg TORCH= --tag uneven .    and: docker run --rm --gpus all uneven doctor
FROM python:3.11-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.11-slim
# Where torch comes from: an index of builds without CUDA. Empty is pip's own, whose torch has CUDA.
ARG TORCH="--index-url https://download.pytorch.org/whl/cpu"
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt ${TORCH} torch
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt /wheels/*.whl \
    && useradd --create-home uneven \
    && install --directory --owner uneven /runs
USER uneven
WORKDIR /home/uneven
COPY examples examples
ENTRYPOINT ["uneven"]
CMD ["demo"]
