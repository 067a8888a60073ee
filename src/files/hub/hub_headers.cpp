// See hub_headers.h.
#include "hasten/files/hub/hub_headers.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "files/base/named_source.h"
#include "hasten/core/error.h"
#include "hasten/files/safetensors/hf_index.h"
#include "hasten/files/safetensors/safetensors_header.h"

namespace hasten::files {
namespace {

constexpr uint64_t kFirstPartBytes = 64 << 10;
constexpr uint64_t kMaxTextBytes = 64 << 20;

class HeaderSource : public NamedSource {
 public:
  using NamedSource::NamedSource;
  void add_all(const SafetensorsHeader& header) {
    for (const SafetensorsEntry& entry : header.entries) add(entry.info);
  }
  std::string_view form() const override { return "headers of a hub"; }

 protected:
  void read_tensor(size_t index, const Box&, void*) const override {
    throw UsageError(Origin{"files"}, "only the headers of ", path(), " were read, not the values of '", names()[index],
                     "'. Download it by hub::snapshot.");
  }
};

class HeaderReader {
 public:
  HeaderReader(const std::string& repo, const hub::DownloadOptions& options, const Environment& environment)
      : repo_(repo), options_(options), environment_(environment) {}

  SafetensorsHeader header(const std::string& file) const {
    constexpr uint64_t kLengthBytes = 8;
    hub::FilePart head = part(file, 0, kFirstPartBytes);
    uint64_t length = 0;
    if (head.bytes.size() >= kLengthBytes && std::endian::native == std::endian::little)
      std::memcpy(&length, head.bytes.data(), kLengthBytes);
    // The rest of a long header. The parser rejects a header that is too long for any file.
    const uint64_t have = head.bytes.size(), requested = std::min(length, head.file_bytes) + kLengthBytes;
    if (requested > have && have < head.file_bytes && length <= (100u << 20))
      head.bytes += part(file, have, requested - have).bytes;
    return parse_safetensors_header(repo_ + "/" + file, head.bytes, head.file_bytes);
  }

  std::string whole(const std::string& file) const { return part(file, 0, kMaxTextBytes).bytes; }

 private:
  hub::FilePart part(const std::string& file, uint64_t begin, uint64_t count) const {
    return hub::read_part(repo_, file, begin, count, options_, environment_);
  }
  const std::string& repo_;
  const hub::DownloadOptions& options_;
  const Environment& environment_;
};

}  // namespace

TensorSourcePtr open_hub_headers(const std::string& repo, const hub::DownloadOptions& options,
                                 const Environment& environment) {
  const HeaderReader reader(repo, options, environment);
  const auto there = hub::list_files(repo, options, environment);
  const auto has = [&](const std::string& file) { return std::find(there.begin(), there.end(), file) != there.end(); };
  auto source = std::make_shared<HeaderSource>(repo);
  constexpr const char* kWhole = "model.safetensors";
  constexpr const char* kIndex = "model.safetensors.index.json";
  if (has(kWhole)) {
    source->add_all(reader.header(kWhole));
  } else if (has(kIndex)) {
    for (const auto& file : parse_hf_index(reader.whole(kIndex), repo + "/" + kIndex).files())
      source->add_all(reader.header(file));
  } else {
    throw UsageError(Origin{"files"}, "the repository '", repo, "' has neither ", kWhole, " nor ", kIndex,
                     ". Only safetensors files have headers that can be read without the values; download the "
                     "repository and name its folder.");
  }
  return source;
}

std::string read_hub_text(const std::string& repo, const std::string& file, const hub::DownloadOptions& options,
                          const Environment& environment) {
  const auto there = hub::list_files(repo, options, environment);
  if (std::find(there.begin(), there.end(), file) == there.end()) return "";
  return HeaderReader(repo, options, environment).whole(file);
}

}  // namespace hasten::files
