# Not built yet: its commands were run one by one in an empty folder.
#
#   docker build -t registry.example.com/ampvit:latest .
#   docker run --rm --init --gpus all --shm-size=8g -v /dataset:/dataset -v $PWD/output:/workspace/ampvit/output \
#       registry.example.com/ampvit:latest torchrun --nproc_per_node=8 main_multi_gpu.py -cfg=... -amp -resume=auto
#
# The driver comes from the host, CUDA from the packages. The full image has the C compiler that torch.compile needs.
FROM python:3.11
WORKDIR /workspace/ampvit
COPY requirements.lock .
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY . .
CMD ["python", "main_single_gpu.py", "-h"]
