// Reading .npy files; see npy.h. The format (NumPy's NEP 1) is "\x93NUMPY", version, length of the header, the header,
// then the values. The length has 16 bits little-endian in version 1, 32 from 2 on. The header is a Python dictionary
// of descr, fortran_order and shape.
#include "hasten/data/dataset/npy.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "data/dataset/data_file.h"
#include "data/origin.h"
#include "hasten/core/error.h"

namespace hasten::data {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

/// Reads the one Python dictionary that a header may be.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::string_view text) : path_(path), text_(text), rest_(text) {}

  Header read() {
    Header header;
    std::vector<std::string> seen;
    expect("{");
    while (!take("}")) {
      const std::string key = quoted();
      expect(":");
      if (key == "descr") {
        if (peek() == '[') fail("a record (structured dtype), expected numbers");
        header.descr = quoted();
      } else if (key == "fortran_order") {
        header.fortran_order = take("True");
        if (!header.fortran_order) expect("False");
      } else if (key == "shape") {
        header.shape = tuple();
      } else {
        fail("an unknown key '" + key + "'");
      }
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) fail("the key '" + key + "' twice");
      seen.push_back(key);
      if (!take(",")) {
        expect("}");
        break;
      }
    }
    skip_blanks();
    if (!rest_.empty()) fail("something after its end");
    if (seen.size() != 3) fail("only " + join(seen) + ", expected descr, fortran_order and shape");
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(kOrigin, path_, "'", path_, "' has a header with ", what, ": ",
                    text_.substr(0, std::min<size_t>(text_.find_last_not_of(" \n") + 1, 200)),
                    ". Save it with numpy.save from an array of numbers.");
  }
  void skip_blanks() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_.front()))) rest_.remove_prefix(1);
  }
  char peek() {
    skip_blanks();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(std::string_view word) {
    skip_blanks();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) fail("no '" + std::string(word) + "' at byte " + std::to_string(text_.size() - rest_.size()));
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') expect("'");
    const size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) fail("a text without end");
    const std::string word(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return word;
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect("(");
    while (!take(")")) {
      skip_blanks();
      int64_t value = -1;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error != std::errc() || value < 0) fail("a shape that is no tuple of sizes");
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      take("L");  // Python 2 wrote long integers so
      values.push_back(value);
      if (!take(",")) {
        expect(")");
        break;
      }
    }
    return values;
  }

  const std::string& path_;
  std::string_view text_, rest_;
};

std::optional<at::ScalarType> dtype_of(std::string_view kind_and_size) {
  static constexpr std::pair<std::string_view, at::ScalarType> kTypes[] = {
      {"b1", at::kBool},         {"u1", at::kByte},          {"i1", at::kChar},  {"u2", at::kUInt16},
      {"i2", at::kShort},        {"u4", at::kUInt32},        {"i4", at::kInt},   {"u8", at::kUInt64},
      {"i8", at::kLong},         {"f2", at::kHalf},          {"f4", at::kFloat}, {"f8", at::kDouble},
      {"c8", at::kComplexFloat}, {"c16", at::kComplexDouble}};
  for (const auto& [name, dtype] : kTypes) {
    if (name == kind_and_size) return dtype;
  }
  return std::nullopt;
}

at::ScalarType dtype_of(const std::string& path, const std::string& descr) {
  const auto dtype = descr.size() > 1 && std::string_view("<>|=").find(descr[0]) != std::string_view::npos
                         ? dtype_of(std::string_view(descr).substr(1))
                         : std::nullopt;
  if (!dtype) {
    throw DataError(kOrigin, path, "'", path, "' holds values of NumPy's type '", descr,
                    "', which torch has no dtype for; expected bool, integers of 8 to 64 bits, float16 to ",
                    "float64 or complex. Convert it with astype before saving.");
  }
  return *dtype;
}

std::vector<int64_t> strides_of(const Header& header) {
  std::vector<int64_t> strides(header.shape.size(), 1);
  for (size_t i = 1; i < strides.size(); ++i) {
    const size_t dim = header.fortran_order ? i : strides.size() - 1 - i;
    const size_t inner = header.fortran_order ? dim - 1 : dim + 1;
    strides[dim] = strides[inner] * std::max<int64_t>(header.shape[inner], 1);
  }
  return strides;
}

/// Returns the values in this machine's byte order, in memory of their own.
at::Tensor swapped(const at::Tensor& values) {
  const at::Tensor result = values.clone();
  const size_t item = c10::elementSize(result.scalar_type()) / (result.is_complex() ? 2 : 1);
  auto* bytes = static_cast<char*>(result.mutable_data_ptr());
  for (size_t at = 0; at < result.nbytes(); at += item) std::reverse(bytes + at, bytes + at + item);
  return result;
}

void check_booleans(const std::string& path, std::string_view values) {
  const auto wrong = std::find_if(values.begin(), values.end(), [](char value) { return value & ~1; });
  if (wrong == values.end()) return;
  throw DataError(kOrigin, path, "'", path, "' holds bool values, but value ", wrong - values.begin(), " is ",
                  static_cast<int>(static_cast<unsigned char>(*wrong)), ", expected 0 or 1. It is damaged.");
}

/// Where the header ends, and the header.
std::pair<size_t, Header> read_header(const std::string& path, std::string_view bytes) {
  if (bytes.size() < 10 || !bytes.starts_with(kMagic)) {
    throw DataError(kOrigin, path, "'", path, "' is no .npy file (", bytes.size(),
                    " bytes): it does not begin with \\x93NUMPY and a version. Check the path.");
  }
  const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<unsigned char>(bytes[at])); };
  const size_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    throw DataError(kOrigin, path, "'", path, "' is in version ", major, ".", minor,
                    " of the .npy format, expected 1.0, 2.0 or 3.0. Save it with a NumPy of today.");
  }
  const size_t begin = major == 1 ? 10 : 12;
  size_t length = byte(8) | byte(9) << 8;
  if (major > 1 && bytes.size() >= begin) length |= byte(10) << 16 | byte(11) << 24;
  if (bytes.size() < begin || bytes.size() - begin < length) {
    throw DataError(kOrigin, path, "'", path, "' is truncated: ", bytes.size(), " bytes, its header alone takes ",
                    begin + length, ". Get the file again.");
  }
  return {begin + length, HeaderReader(path, bytes.substr(begin, length)).read()};
}

}  // namespace

at::Tensor map_npy(const std::string& path) {
  const auto file = open_data_file(path, "a .npy file");
  const auto [begin, header] = read_header(path, file->bytes());
  const at::ScalarType dtype = dtype_of(path, header.descr);
  const size_t have = file->bytes().size() - begin;
  // A number of a header may fit no integer. Sizes are checked with 1 for each 0, because a tensor's strides must fit
  // as well.
  double stated = static_cast<double>(c10::elementSize(dtype)), strided = stated;
  for (const int64_t size : header.shape) {
    stated *= static_cast<double>(size);
    strided *= static_cast<double>(std::max<int64_t>(size, 1));
  }
  if (stated > static_cast<double>(have) || strided > 0x1p62) {
    throw DataError(kOrigin, path, "'", path, "' states [", join(header.shape, " x "), "] values of type '",
                    header.descr, "', ", stated, " bytes, but holds ", have,
                    ": it is truncated or damaged. Get the file again.");
  }
  if (dtype == at::kBool) check_booleans(path, file->bytes().substr(begin, static_cast<size_t>(stated)));
  const at::Tensor values = tensor_over(file, begin, header.shape, strides_of(header), dtype);
  const char order = std::endian::native == std::endian::little ? '>' : '<';
  return header.descr[0] == order && c10::elementSize(dtype) > 1 ? swapped(values) : values;
}

}  // namespace hasten::data
