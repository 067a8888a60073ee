// See indexed_tokens.h.
#include "hasten/files/folders/indexed_tokens.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::files {
namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kIndexVersion = 1;
// By the number in the file, from 1.
constexpr std::array kDtypes = {Dtype::kUInt8, Dtype::kInt8,    Dtype::kInt16,   Dtype::kInt32,
                                Dtype::kInt64, Dtype::kFloat64, Dtype::kFloat32, Dtype::kUInt16};

// The bytes of an index, from the first to the last.
class IndexBytes {
 public:
  explicit IndexBytes(const MappedFile& file) : file_(file) {}

  template <class T>
  T one(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof(T), 1, what), sizeof(T));
    return value;
  }
  template <class T>
  std::vector<int64_t> many(uint64_t count, const char* what) {
    const char* const first = take(sizeof(T), count, what);
    std::vector<int64_t> values(count);
    for (uint64_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, first + i * sizeof(T), sizeof(T));
      values[i] = value;
    }
    return values;
  }
  bool is_done() const noexcept { return at_ == file_.bytes().size(); }
  size_t at() const noexcept { return at_; }

 private:
  const char* take(size_t each, uint64_t count, const char* what) {
    const size_t left = file_.bytes().size() - at_;
    if (count > left / each) {
      throw DataError(Origin{"files"}, file_.path(), "'", file_.path(), "' is cut short: at byte ", at_, " stand ",
                      left, " bytes; expected ", count, " x ", each, " of ", what, ". Copy the file again.");
    }
    const char* const found = file_.bytes().data() + at_;
    at_ += each * count;
    return found;
  }

  const MappedFile& file_;
  size_t at_ = 0;
};

Dtype dtype_of_code(uint8_t code, const std::string& path) {
  if (code >= 1 && code <= kDtypes.size()) return kDtypes[code - 1];
  throw DataError(Origin{"files"}, path, "'", path, "' has tokens of dtype number ", static_cast<int>(code),
                  " at byte 17; expected 1 to ", kDtypes.size(), '.');
}

template <class T>
void append_value(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

IndexedTokens::IndexedTokens(const std::string& prefix) {
  const auto index = MappedFile::open(prefix + ".idx");
  const auto wrong = [&](auto&&... words) {
    return DataError(Origin{"files"}, index->path(), "'", index->path(), "' ", words...);
  };
  if (!index->bytes().starts_with(kIndexMagic)) {
    throw wrong("is no index of Megatron's: it does not begin with MMIDIDX.");
  }
  IndexBytes bytes(*index);
  for (size_t i = 0; i < kIndexMagic.size(); ++i) bytes.one<char>("the name of the form");
  if (const auto version = bytes.one<uint64_t>("the version"); version != kIndexVersion) {
    throw wrong("has version ", version, " at byte 9; expected ", kIndexVersion, '.');
  }
  dtype_ = dtype_of_code(bytes.one<uint8_t>("the dtype"), index->path());
  const auto sequences = bytes.one<uint64_t>("the number of sequences");
  const auto documents = bytes.one<uint64_t>("the number of documents");
  lengths_ = bytes.many<int32_t>(sequences, "lengths");
  offsets_ = bytes.many<int64_t>(sequences, "first bytes");
  documents_ = bytes.many<int64_t>(documents, "documents");
  if (!bytes.is_done()) {
    for (const int64_t mode : bytes.many<int8_t>(sequences, "modes")) modes_.push_back(static_cast<int8_t>(mode));
  }
  if (!bytes.is_done()) throw wrong("goes on behind its end at byte ", bytes.at(), '.');
  values_ = MappedFile::open(prefix + ".bin");
  const auto all = static_cast<int64_t>(values_->bytes().size()), each = static_cast<int64_t>(element_bytes(dtype_));
  for (size_t i = 0; i < lengths_.size(); ++i) {
    const bool fits =
        lengths_[i] >= 0 && offsets_[i] >= 0 && offsets_[i] <= all && lengths_[i] <= (all - offsets_[i]) / each;
    if (fits) continue;
    throw wrong("has sequence ", i, " of ", lengths_[i], " tokens at byte ", offsets_[i], " of '", values_->path(),
                "', which has ", all, " bytes. The two files are not of one dataset, or one is cut short.");
  }
  for (const int64_t first : documents_) {
    if (first < 0 || first > size()) throw wrong("has a document at sequence ", first, " of ", size(), '.');
  }
}

const char* IndexedTokens::tokens(int64_t sequence) const {
  if (sequence < 0 || sequence >= size()) {
    throw UsageError(Origin{"files"}, "sequence ", sequence, " of ", size(), "; expected one that is there.");
  }
  return values_->bytes().data() + offsets_[static_cast<size_t>(sequence)];
}

IndexedTokensWriter::IndexedTokensWriter(Disk& disk, std::string prefix, Dtype dtype)
    : disk_(disk), prefix_(std::move(prefix)), dtype_(dtype) {
  if (std::find(kDtypes.begin(), kDtypes.end(), dtype) == kDtypes.end()) {
    throw UsageError(Origin{"files"}, "tokens of ", torch_name(dtype),
                     "; expected integers of 8 to 64 bits (of 16 without a sign at most), float32 or float64.");
  }
  values_ = disk_.create(prefix_ + ".bin.tmp");
}

void IndexedTokensWriter::add(const void* tokens, int64_t length, std::optional<int8_t> mode) {
  if (length < 0 || length > INT32_MAX) {
    throw UsageError(Origin{"files"}, "a sequence of ", length, " tokens; expected at most ", INT32_MAX, '.');
  }
  if (!lengths_.empty() && mode.has_value() == modes_.empty()) {
    throw UsageError(Origin{"files"}, "sequence ", lengths_.size(), mode ? " has" : " lacks",
                     " a mode, unlike those before. Give all of them one, or none.");
  }
  const size_t bytes = static_cast<size_t>(length) * element_bytes(dtype_);
  values_->write_at(bytes_, tokens, bytes);
  offsets_.push_back(static_cast<int64_t>(bytes_));
  lengths_.push_back(length);
  if (mode) modes_.push_back(*mode);
  bytes_ += bytes;
}

void IndexedTokensWriter::finish() {
  values_->sync();
  values_->close();
  std::string out(kIndexMagic);
  append_value(out, kIndexVersion);
  const auto code = std::find(kDtypes.begin(), kDtypes.end(), dtype_) - kDtypes.begin() + 1;
  append_value(out, static_cast<uint8_t>(code));
  append_value(out, static_cast<uint64_t>(lengths_.size()));
  append_value(out, static_cast<uint64_t>(documents_.size()));
  for (const int64_t length : lengths_) append_value(out, static_cast<int32_t>(length));
  for (const int64_t offset : offsets_) append_value(out, offset);
  for (const int64_t first : documents_) append_value(out, first);
  for (const int8_t mode : modes_) append_value(out, mode);
  write_file(disk_, prefix_ + ".idx.tmp", out);
  disk_.rename(prefix_ + ".bin.tmp", prefix_ + ".bin", Rename::kReplace);
  disk_.rename(prefix_ + ".idx.tmp", prefix_ + ".idx", Rename::kReplace);
}

}  // namespace hasten::files
