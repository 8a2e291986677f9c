"""Trains a small network on class folders of images, as people do with torchvision's ImageFolder, whose logic this is.

python image_folder.py ROOT NUM_WORKERS [fork|spawn|forkserver]
"""

import hashlib
import os
import sys

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

EXTENSIONS = (".jpg", ".jpeg", ".png")


class ImageFolder(Dataset):
    def __init__(self, root):
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        if not classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {root}.")
        self.samples = []
        for number, name in enumerate(classes):
            for folder, _, names in sorted(os.walk(os.path.join(root, name), followlinks=True)):
                for file in sorted(names):
                    if file.lower().endswith(EXTENSIONS):
                        self.samples.append((os.path.join(folder, file), number))
        self.classes = classes

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        path, label = self.samples[number]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        if number % 2:
            image = Image.open(path).convert("RGB")
        pixels = torch.frombuffer(bytearray(image.resize((8, 8)).tobytes()), dtype=torch.uint8)
        return pixels.float() / 255, label


def main(root, num_workers, context=None):
    torch.manual_seed(0)
    data = ImageFolder(root)
    loader = DataLoader(data, 4, shuffle=True, num_workers=num_workers, multiprocessing_context=context)
    model = torch.nn.Linear(192, len(data.classes))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for pixels, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("DIGEST", hashlib.sha256(weights).hexdigest(), len(data), data.classes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
