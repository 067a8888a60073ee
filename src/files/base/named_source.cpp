// Look-up by name and reading of boxes from files; see named_source.h.
#include "files/base/named_source.h"

#include <algorithm>
#include <cstring>

#include "files/base/origin.h"
#include "hasten/core/sentence.h"

namespace hasten::files {

size_t NamedSource::add(TensorInfo info) {
  if (!index_.emplace(info.name, infos_.size()).second) {
    fail_data(path_, "tensor '", info.name, "' stands twice. Get the file again, or write it anew.");
  }
  names_.push_back(info.name);
  infos_.push_back(std::move(info));
  return infos_.size() - 1;
}

size_t NamedSource::index_of(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found != index_.end()) return found->second;
  throw UsageError(kOrigin, "'", path_, "' has no tensor '", name, "'", guess_end(name, names_), " It has ",
                   names_.size(), names_.size() <= 20 ? ": " + join(names_) : "", ". Correct the name.");
}

void NamedSource::read(std::string_view name, const Box& box, void* target) const {
  const size_t index = index_of(name);
  if (!fits(box, infos_[index].shape)) {
    throw UsageError(kOrigin, "the box ", describe(box), " is not inside tensor '", name, "' of shape [",
                     join(infos_[index].shape), "].");
  }
  if (numel_of(box) > 0) read_tensor(index, box, target);
}

void read_box(const PosixFile& file, uint64_t offset, std::span<const int64_t> shape, const Box& box, size_t item_bytes,
              void* target) {
  constexpr uint64_t kGap = 64 << 10, kChunk = 4 << 20;
  struct Part {
    uint64_t begin, size;
    char* to;
  };
  std::vector<Part> pending;
  std::string buffer;
  const auto flush = [&] {
    if (pending.empty()) return;
    const uint64_t begin = pending.front().begin, end = pending.back().begin + pending.back().size;
    if (pending.size() == 1) {
      file.read_at(begin, pending.front().to, pending.front().size);
    } else {
      buffer.resize(end - begin);
      file.read_at(begin, buffer.data(), buffer.size());
      for (const Part& part : pending) std::memcpy(part.to, buffer.data() + (part.begin - begin), part.size);
    }
    pending.clear();
  };
  char* to = static_cast<char*>(target);
  for_each_run(shape, box, [&](Run run) {
    const Part part{offset + static_cast<uint64_t>(run.begin) * item_bytes,
                    static_cast<uint64_t>(run.count) * item_bytes, to};
    to += part.size;
    if (!pending.empty()) {
      const uint64_t end = pending.back().begin + pending.back().size;
      if (part.begin - end > kGap || part.begin + part.size - pending.front().begin > kChunk) flush();
    }
    pending.push_back(part);
  });
  flush();
}

}  // namespace hasten::files
