// Reading a box from the pieces that it touches; see pieces.h.
#include "files/base/pieces.h"

#include <algorithm>

#include "files/base/origin.h"

namespace hasten::files {

void check_cover(const std::string& path, const TensorInfo& info, const std::vector<FilePiece>& pieces) {
  int64_t covered = 0;
  std::vector<const Box*> boxes;
  for (const FilePiece& piece : pieces) {
    if (!fits(piece.box, info.shape)) {
      fail_data(path, "tensor '", info.name, "' [", join(info.shape), "] has the part ", describe(piece.box),
                " outside it.");
    }
    covered += numel_of(piece.box);
    boxes.push_back(&piece.box);
  }
  if (covered != numel_of(info.shape)) {
    fail_data(path, "the parts of tensor '", info.name, "' [", join(info.shape), "] hold ", covered,
              " elements, expected ", numel_of(info.shape), ". A file is missing.");
  }
  if (info.shape.empty()) return;
  std::sort(boxes.begin(), boxes.end(), [](const Box* a, const Box* b) { return a->offset < b->offset; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size() && boxes[j]->offset[0] < boxes[i]->offset[0] + boxes[i]->size[0]; ++j) {
      if (intersection(*boxes[i], *boxes[j])) {
        fail_data(path, "parts of tensor '", info.name, "' overlap: ", describe(*boxes[i]), " and ",
                  describe(*boxes[j]), ".");
      }
    }
  }
}

void read_common(const Box& part, const Box& box, size_t item_bytes, void* target,
                 const std::function<void(const Box& local, void* into)>& read) {
  const auto common = intersection(part, box);
  if (!common) return;
  Box local = *common;
  for (size_t d = 0; d < local.offset.size(); ++d) local.offset[d] -= part.offset[d];
  if (*common == box) return read(local, target);
  std::string bytes(static_cast<size_t>(numel_of(*common)) * item_bytes, '\0');
  read(local, bytes.data());
  copy_common(bytes.data(), *common, target, box, item_bytes);
}

void PieceSource::add_tensor(TensorInfo info, std::vector<FilePiece> pieces) {
  check_cover(path(), info, pieces);
  add(std::move(info));
  pieces_.push_back(std::move(pieces));
}

std::optional<TensorLocation> PieceSource::location(std::string_view name) const {
  const size_t index = index_of(name);
  if (pieces_[index].size() != 1) return std::nullopt;
  const FilePiece& piece = pieces_[index].front();
  return TensorLocation{piece.file->path(), piece.offset, contiguous_strides(info(name).shape)};
}

void PieceSource::read_tensor(size_t index, const Box& box, void* target) const {
  const size_t item = element_bytes(info(names()[index]).dtype);
  for (const FilePiece& piece : pieces_[index]) {
    read_common(piece.box, box, item, target, [&](const Box& local, void* into) {
      read_box(*piece.file->opened(), piece.offset, piece.box.size, local, item, into);
    });
  }
}

}  // namespace hasten::files
