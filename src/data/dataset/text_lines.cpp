// Indexing lines; see text_lines.h.
#include "hasten/data/dataset/text_lines.h"

#include <cstring>
#include <vector>

#include "data/dataset/data_file.h"
#include "hasten/data/dataset/rows.h"

namespace hasten::data {

struct TextLines::Index {
  DataFile file;
  std::vector<size_t> starts;  // of each line, and where one more would start
};

TextLines::TextLines(const std::string& path) {
  const auto index = std::shared_ptr<Index>(new Index{open_data_file(path, "a text file"), {}});
  const std::string_view bytes = index->file->bytes();
  size_t at = bytes.starts_with("\xef\xbb\xbf") ? 3 : 0;
  while (at < bytes.size()) {
    index->starts.push_back(at);
    const void* end = std::memchr(bytes.data() + at, '\n', bytes.size() - at);
    at = end ? static_cast<size_t>(static_cast<const char*>(end) - bytes.data()) + 1 : bytes.size();
  }
  index->starts.push_back(at);
  index_ = index;
}

std::optional<size_t> TextLines::size() const {
  return index_->starts.size() - 1;
}

std::string_view TextLines::line(size_t index) const {
  check_index(index, *size(), "a text file");
  const size_t begin = index_->starts[index];
  std::string_view line = index_->file->bytes().substr(begin, index_->starts[index + 1] - begin);
  if (line.ends_with('\n')) {
    line.remove_suffix(1);
    if (line.ends_with('\r')) line.remove_suffix(1);
  }
  return line;
}

}  // namespace hasten::data
