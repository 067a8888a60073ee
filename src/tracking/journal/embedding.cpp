// See embedding.h. The files are those of torch.utils.tensorboard's add_embedding.
#include "tracking/journal/embedding.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "hasten/core/error.h"
#include "tracking/journal/png.h"

namespace hasten::tracking {
namespace {

const Origin kEmbedding{"tracking"};

size_t num_points(const Embedding& embedding) {
  return embedding.values.size() / static_cast<size_t>(embedding.num_dims);
}

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error(text(path.string(), " cannot be written"));
}

std::string tensors_tsv(const Embedding& embedding) {
  std::string out;
  char number[64];
  const auto num_dims = static_cast<size_t>(embedding.num_dims);
  for (size_t i = 0; i < embedding.values.size(); ++i) {
    const auto end = std::to_chars(number, number + sizeof number, embedding.values[i]).ptr;
    out.append(number, end) += (i + 1) % num_dims == 0 ? '\n' : '\t';
  }
  return out;
}

// A tab or a line break would begin another cell.
void append_cells(std::string& out, const std::vector<std::string>& cells) {
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) out += '\t';
    for (const char letter : cells[i]) out += letter == '\t' || letter == '\n' || letter == '\r' ? ' ' : letter;
  }
  out += '\n';
}

std::string metadata_tsv(const Embedding& embedding) {
  std::string out;
  if (!embedding.columns.empty()) append_cells(out, embedding.columns);
  for (const auto& line : embedding.metadata) append_cells(out, line);
  return out;
}

// As many rows as columns, which the projector expects.
Image sprite(const std::vector<Image>& images) {
  const auto columns = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(images.size()))));
  Image grid = image_grid(images, columns);
  grid.height = images.front().height * columns;
  grid.pixels.resize(static_cast<size_t>(grid.width) * static_cast<size_t>(grid.height) *
                     static_cast<size_t>(grid.channels));
  return grid;
}

// A text of the protobuf text format.
std::string pbtxt_text(const std::string& words) {
  std::string out = "\"";
  for (const char letter : words) {
    const auto byte = static_cast<unsigned char>(letter);
    char escaped[8];
    if (letter == '"' || letter == '\\') {
      (out += '\\') += letter;
    } else if (byte < 0x20 || byte == 0x7f) {
      std::snprintf(escaped, sizeof escaped, "\\%03o", static_cast<unsigned>(byte));
      out += escaped;
    } else {
      out += letter;
    }
  }
  return out + '"';
}

std::string zero_padded(int64_t step) {
  const std::string digits = std::to_string(step);
  return digits.size() < 5 ? std::string(5 - digits.size(), '0') + digits : digits;
}

}  // namespace

void require_embedding(const std::string& key, const Embedding& embedding) {
  if (embedding.num_dims < 1 || embedding.values.empty() ||
      embedding.values.size() % static_cast<size_t>(embedding.num_dims) != 0) {
    throw UsageError(kEmbedding, "the embedding '", key, "' has ", embedding.values.size(),
                     " numbers and num_dims = ", embedding.num_dims, "; expected one row of num_dims numbers a point.");
  }
  const size_t points = num_points(embedding);
  if (!embedding.metadata.empty() && embedding.metadata.size() != points) {
    throw UsageError(kEmbedding, "the embedding '", key, "' has ", points, " points and ", embedding.metadata.size(),
                     " lines of metadata; expected one a point.");
  }
  if (!embedding.images.empty() && embedding.images.size() != points) {
    throw UsageError(kEmbedding, "the embedding '", key, "' has ", points, " points and ", embedding.images.size(),
                     " images; expected one a point.");
  }
  for (const auto& line : embedding.metadata) {
    const size_t expected = embedding.columns.empty() ? 1 : embedding.columns.size();
    if (line.size() != expected) {
      throw UsageError(kEmbedding, "a line of metadata of the embedding '", key, "' has ", line.size(),
                       " cells; expected ", expected,
                       embedding.columns.empty() ? ". Name the columns if there are several." : ", one a column.");
    }
  }
  for (const Image& image : embedding.images) {
    if (image.width != embedding.images.front().width || image.height != embedding.images.front().height) {
      throw UsageError(kEmbedding, "the images of the embedding '", key,
                       "' are of several sizes; expected one size. Resize them.");
    }
  }
}

EmbeddingFiles write_embedding(const std::filesystem::path& folder, const Embedding& embedding) {
  std::filesystem::create_directories(folder);
  EmbeddingFiles files{.folder = folder, .has_metadata = !embedding.metadata.empty()};
  write_file(folder / "tensors.tsv", tensors_tsv(embedding));
  if (files.has_metadata) write_file(folder / "metadata.tsv", metadata_tsv(embedding));
  if (embedding.images.empty()) return files;
  write_file(folder / "sprite.png", encode_png(sprite(embedding.images)));
  files.image_width = embedding.images.front().width;
  files.image_height = embedding.images.front().height;
  return files;
}

core::Value to_value(const EmbeddingFiles& files) {
  return core::Value::map(
      {{"has_metadata", files.has_metadata}, {"image_width", files.image_width}, {"image_height", files.image_height}});
}

EmbeddingFiles embedding_files(const core::Value& value, const std::filesystem::path& folder) {
  const auto integer = [&](const char* key) {
    const core::Value* found = value.find(key);
    return found != nullptr && found->is_int() ? static_cast<int>(found->as_int()) : 0;
  };
  const core::Value* metadata = value.find("has_metadata");
  return {.folder = folder,
          .has_metadata = metadata != nullptr && metadata->is_bool() && metadata->as_bool(),
          .image_width = integer("image_width"),
          .image_height = integer("image_height")};
}

std::string embedding_folder(std::string_view key, int64_t step) {
  std::string name;
  for (const char letter : key) {
    if (letter == '%') {
      name += "%25";
    } else if (letter == '/') {
      name += "%2f";
    } else if (letter == '\\') {
      name += "%5c";
    } else {
      name += letter;
    }
  }
  if (name == "." || name == "..") name += '_';
  return zero_padded(step) + "/" + name;
}

std::string projector_entry(const std::string& key, int64_t step, const EmbeddingFiles& files) {
  const std::string folder = embedding_folder(key, step);
  std::string out = "embeddings {\n  tensor_name: " + pbtxt_text(key + ":" + zero_padded(step)) + "\n";
  if (files.has_metadata) out += "  metadata_path: " + pbtxt_text(folder + "/metadata.tsv") + "\n";
  if (files.image_width > 0) {
    out +=
        "  sprite {\n    image_path: " + pbtxt_text(folder + "/sprite.png") +
        text("\n    single_image_dim: ", files.image_width, "\n    single_image_dim: ", files.image_height, "\n  }\n");
  }
  return out + "  tensor_path: " + pbtxt_text(folder + "/tensors.tsv") + "\n}\n";
}

}  // namespace hasten::tracking
