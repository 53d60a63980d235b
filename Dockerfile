# An image with Buttress, from the wheel:
#
#   make wheel
#   docker build -t buttress .                                     CPU
#   docker build -t buttress:cuda --build-arg BACKEND=cu128 .      CUDA 12.8
#   docker run --rm -v "$PWD:/work" buttress quickstart
#   docker run --rm --gpus all -v "$PWD:/work" buttress:cuda evaluate runs/r1 --device cuda
#
# The CUDA libraries come with PyTorch's own builds: the host needs only NVIDIA's driver and its
# container toolkit. torch and torchvision are installed first, as a pair for the same backend.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
ARG BACKEND=cpu
ARG TORCH=2.13.0
ARG TORCHVISION=0.28.0
RUN pip install --no-cache-dir uv && uv pip install --system --no-cache --torch-backend ${BACKEND} \
    torch==${TORCH} torchvision==${TORCHVISION}
COPY dist/*.whl /tmp/dist/
RUN pip install --no-cache-dir --find-links /tmp/dist buttress && rm -r /tmp/dist
RUN useradd --create-home user && mkdir /work && chown user /work
USER user
WORKDIR /work
ENTRYPOINT ["buttress"]
CMD ["--help"]
