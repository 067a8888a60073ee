// IndexedTokens: Megatron's indexed dataset, documents of sequences of tokens in a pair of files, NAME.idx and
// NAME.bin.
//
// The .bin file holds all tokens in a row. The .idx file holds the dtype, each sequence's length and first byte, and
// the number of the sequence with which each document begins. Both are mapped, so that processes share the pages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/files/base/dtype.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/disk/mapped_file.h"

namespace hasten::files {

class IndexedTokens {
 public:
  /// `prefix`: the path without ".idx". Integers, float32 and float64 are known.
  /// Another form or version, an unknown dtype, an index that is cut short, and sequences outside of the .bin file are
  /// refused. Blocks: on the files. Throws: DataError with the file, the fault and its byte.
  explicit IndexedTokens(const std::string& prefix);

  Dtype dtype() const noexcept { return dtype_; }
  int64_t size() const noexcept { return static_cast<int64_t>(lengths_.size()); }
  /// Tokens of each sequence.
  const std::vector<int64_t>& lengths() const noexcept { return lengths_; }
  /// The first sequence of each document, and the number of sequences behind the last.
  const std::vector<int64_t>& documents() const noexcept { return documents_; }
  /// A mark of each sequence, of multimodal data; empty: there are none.
  const std::vector<int8_t>& modes() const noexcept { return modes_; }

  /// Returns a sequence's tokens in memory that lasts as long as this, element_bytes(dtype()) each. They may lie at any
  /// address. Throws: UsageError for a number outside of [0, size).
  const char* tokens(int64_t sequence) const;

 private:
  std::shared_ptr<const MappedFile> values_;
  Dtype dtype_ = Dtype::kInt32;
  std::vector<int64_t> lengths_, offsets_, documents_;
  std::vector<int8_t> modes_;
};

/// Writes such a pair. Files appear at finish().
class IndexedTokensWriter {
 public:
  /// Throws: UsageError for a dtype that the form lacks; DataError.
  IndexedTokensWriter(Disk& disk, std::string prefix, Dtype dtype);

  /// Appends a sequence of `length` tokens to the document under way. Throws: DataError; UsageError for more than 2^31
  /// tokens, or a mode on some sequences only.
  void add(const void* tokens, int64_t length, std::optional<int8_t> mode = {});
  void end_document() { documents_.push_back(static_cast<int64_t>(lengths_.size())); }
  /// Blocks: on the disk. Throws: DataError.
  void finish();

 private:
  Disk& disk_;
  std::string prefix_;
  Dtype dtype_;
  std::unique_ptr<DiskFile> values_;
  uint64_t bytes_ = 0;
  std::vector<int64_t> lengths_, offsets_, documents_ = {0};
  std::vector<int8_t> modes_;
};

}  // namespace hasten::files
