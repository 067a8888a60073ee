#!/usr/bin/env python3
"""Makes the images beside it and what Pillow makes of them: NAME.{png,jpg}, NAME.ppm (convert("RGB")), and
resize_HxW.ppm (photo.png resized, bilinear). Run it with a Python that has Pillow; the results are in the repository."""
import io
import math
import pathlib
import struct
import zlib

from PIL import Image

HERE = pathlib.Path(__file__).resolve().parent
HEIGHT, WIDTH = 30, 44


def photo(height, width):
    """Smooth shades, an edge and some noise."""
    image = Image.new("RGB", (width, height))
    noise = 1
    for y in range(height):
        for x in range(width):
            noise = (noise * 1103515245 + 12345) % 2**31
            red = 128 + 100 * math.sin(x / 5) * math.cos(y / 7)
            green = 255 if (x - 20) ** 2 + (y - 14) ** 2 < 90 else 255 * x / width
            blue = (noise >> 16) % 256 if y > 22 else 255 * y / height
            image.putpixel((x, y), (int(red), int(green), int(blue)))
    return image


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(name, width, height, depth, colour, data, interlace=0):
    """What Pillow cannot write: 16-bit RGB, 2-bit gray, interlaced."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    (HERE / name).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data))
                              + chunk(b"IEND", b""))


def interlaced(image):
    data = b""
    for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        for y in range(y0, image.height, dy):
            data += b"\0" + b"".join(bytes(image.getpixel((x, y))) for x in range(x0, image.width, dx))
    return data


def main():
    image = photo(HEIGHT, WIDTH)
    image.save(HERE / "photo.png")
    image.save(HERE / "photo.jpg", quality=85)
    image.save(HERE / "progressive.jpg", quality=85, progressive=True)
    image.convert("L").save(HERE / "gray.jpg", quality=85)
    image.convert("CMYK").save(HERE / "cmyk.jpg", quality=85)
    image.convert("L").save(HERE / "gray.png")
    image.convert("1").save(HERE / "black.png")
    image.quantize(16).save(HERE / "palette.png", transparency=3)
    alpha = image.convert("L").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image.putalpha(alpha)
    image.save(HERE / "rgba.png")
    image.convert("LA").save(HERE / "gray_alpha.png")
    image = image.convert("RGB")
    rows = [[image.getpixel((x, y)) for x in range(WIDTH)] for y in range(HEIGHT)]
    png("rgb16.png", WIDTH, HEIGHT, 16, 2,
        b"".join(b"\0" + b"".join(bytes((v, (v * 7) % 256)) for pixel in row for v in pixel) for row in rows))
    png("gray2.png", WIDTH, HEIGHT, 2, 0,
        b"".join(b"\0" + bytes((x + y) * 37 % 256 for x in range(WIDTH // 4)) for y in range(HEIGHT)))
    png("gray16.png", WIDTH, HEIGHT, 16, 0,
        b"".join(b"\0" + b"".join(struct.pack(">H", pixel[0] * 256 + 99) for pixel in row) for row in rows))
    png("interlaced.png", WIDTH, HEIGHT, 8, 2, interlaced(image), interlace=1)
    for file in sorted([*HERE.glob("*.png"), *HERE.glob("*.jpg")]):
        if file.stem == "gray16":  # Pillow cuts values above 255 off; ours keeps the upper 8 bits
            Image.frombytes("RGB", (WIDTH, HEIGHT), bytes(p[0] for row in rows for p in row for _ in range(3))
                            ).save(file.with_suffix(".png.ppm"))
            continue
        with Image.open(file) as opened:
            opened.convert("RGB").save(HERE / (file.name + ".ppm"))
    for height, width in ((15, 20), (7, 44), (41, 60), (2, 3), (30, 10)):
        image.resize((width, height), Image.Resampling.BILINEAR).save(HERE / f"resize_{height}x{width}.ppm")


if __name__ == "__main__":
    main()
