// Tensors in pieces over files: the part that sharded sources share; private to the room.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "files/base/named_source.h"
#include "files/base/source_file.h"

namespace hasten::files {

/// A box of a tensor that lies contiguously in a file.
struct FilePiece {
  std::shared_ptr<const SourceFile> file;
  uint64_t offset = 0;
  Box box = {};
};

/// Throws DataError unless the pieces cover the tensor once. `path` appears in messages.
void check_cover(const std::string& path, const TensorInfo& info, const std::vector<FilePiece>& pieces);

/// Reads what `part`, a box of a tensor, has of `box` into `target`, which holds `box`; nothing where they have nothing
/// in common. `read` gets a box in the part's own coordinates, and memory that holds it alone.
void read_common(const Box& part, const Box& box, size_t item_bytes, void* target,
                 const std::function<void(const Box& local, void* into)>& read);

class PieceSource : public NamedSource {
 public:
  PieceSource(std::string path, std::string_view form) : NamedSource(std::move(path)), form_(form) {}
  std::string_view form() const override { return form_; }
  std::optional<TensorLocation> location(std::string_view name) const override;
  void add_tensor(TensorInfo info, std::vector<FilePiece> pieces);
  using NamedSource::remark;

 protected:
  void read_tensor(size_t index, const Box& box, void* target) const override;

 private:
  std::string_view form_;
  std::vector<std::vector<FilePiece>> pieces_;
};

}  // namespace hasten::files
