// Reading CSV files; see csv.h. A small machine over the mapped bytes gives records of fields, each with the place
// where it begins. Columns turn fields into values.
#include "hasten/data/dataset/csv.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>
#include <type_traits>

#include "data/dataset/data_file.h"
#include "data/origin.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/data/dataset/rows.h"

namespace hasten::data {

namespace {

/// Where something stands: both from 1 on, the column in bytes.
struct Place {
  size_t line = 1, column = 1;
};

template <class... Parts>
[[noreturn]] void fail(const std::string& path, const Place& place, const Parts&... parts) {
  throw DataError(kOrigin, path, path, ":", place.line, ":", place.column, ": ", parts...);
}

struct Field {
  std::string text;
  Place place;
};

class RecordReader {
 public:
  RecordReader(const std::string& path, std::string_view bytes, char separator)
      : path_(path), bytes_(bytes), separator_(separator) {
    if (bytes_.starts_with("\xef\xbb\xbf")) at_ = line_begin_ = 3;
  }

  /// Reads the next record; false at the end of the file. Fields keep their memory from record to record.
  bool next(std::vector<Field>& fields) {
    while (take_line_end()) {
    }
    if (at_ >= bytes_.size()) return false;
    size_t count = 0;
    do {
      if (count == fields.size()) fields.emplace_back();
      read_field(fields[count++]);
    } while (take_separator());
    fields.resize(count);
    if (at_ < bytes_.size() && !take_line_end()) {
      fail(path_, place(), "'", bytes_[at_], "' after a closing quote, expected '", separator_,
           "' or the end of the line. Double the quotes that belong to the text.");
    }
    return true;
  }

 private:
  Place place() const { return {line_, at_ - line_begin_ + 1}; }
  bool take_separator() {
    if (at_ >= bytes_.size() || bytes_[at_] != separator_) return false;
    ++at_;
    return true;
  }
  bool take_line_end() {
    const size_t length = bytes_.substr(at_, 1) == "\n" ? 1 : bytes_.substr(at_, 2) == "\r\n" ? 2 : 0;
    at_ += length;
    if (length > 0) begin_line();
    return length > 0;
  }
  void begin_line() {
    ++line_;
    line_begin_ = at_;
  }
  void read_field(Field& field) {
    field.text.clear();
    field.place = place();
    if (at_ < bytes_.size() && bytes_[at_] == '"') return read_quoted(field);
    const size_t begin = at_;
    for (; at_ < bytes_.size() && bytes_[at_] != separator_ && bytes_[at_] != '\n'; ++at_) {
      if (bytes_[at_] == '"') {
        fail(path_, place(), "a quote inside a field that does not begin with one. ",
             "Put the field in quotes and double those inside.");
      }
    }
    if (at_ > begin && at_ < bytes_.size() && bytes_[at_] == '\n' && bytes_[at_ - 1] == '\r') --at_;
    field.text.assign(bytes_.substr(begin, at_ - begin));
  }
  void read_quoted(Field& field) {
    for (++at_; at_ < bytes_.size(); ++at_) {
      if (bytes_[at_] == '"') {
        ++at_;
        if (at_ >= bytes_.size() || bytes_[at_] != '"') return;
      }
      field.text += bytes_[at_];
      if (bytes_[at_] == '\n') {
        ++at_;
        begin_line();
        --at_;
      }
    }
    fail(path_, field.place, "this quote is not closed before the file ends. Close it.");
  }

  const std::string& path_;
  std::string_view bytes_;
  char separator_;
  size_t at_ = 0, line_ = 1, line_begin_ = 0;
};

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

/// Parses all of the text.
template <class Number>
std::errc parse(std::string_view text, Number& number) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end != text.data() + text.size() ? std::errc::invalid_argument : error;
}

bool fits_int64(double value) {
  return std::trunc(value) == value && value >= -0x1p63 && value < 0x1p63;
}

/// Collects the values of one column.
class Column {
 public:
  Column(const std::string& path, const CsvColumn& column, const CsvOptions& options, size_t position)
      : path_(path), column_(column), missing_(options.missing), position_(position) {
    if (column.type == CsvType::kInteger && column.missing && !fits_int64(*column.missing)) {
      throw UsageError(kOrigin, "CsvColumn.missing = ", *column.missing, " for column '", column.name,
                       "' of kInteger, expected a whole number of 64 bits. Give one, or read the column as kDouble.");
    }
  }

  const std::string& name() const { return column_.name; }
  bool is_text() const { return column_.type == CsvType::kText; }

  void add(std::vector<Field>& fields) {
    Field& field = fields[position_];
    switch (column_.type) {
      case CsvType::kText:
        return texts_.push_back(field.text);
      case CsvType::kInteger:
        return integers_.push_back(number<int64_t>(field, "a whole number"));
      case CsvType::kFloat:
        return floats_.push_back(single(field));
      case CsvType::kDouble:
        return doubles_.push_back(number<double>(field, "a number"));
    }
  }
  std::vector<std::string> take_texts() { return std::move(texts_); }
  at::Tensor tensor() const {
    switch (column_.type) {
      case CsvType::kInteger:
        return copied(integers_, at::kLong);
      case CsvType::kFloat:
        return copied(floats_, at::kFloat);
      default:
        return copied(doubles_, at::kDouble);
    }
  }

 private:
  template <class Number>
  Number number(const Field& field, const char* expected) const {
    const std::string_view text = trimmed(field.text);
    if (std::find(missing_.begin(), missing_.end(), text) != missing_.end()) {
      if (column_.missing) return static_cast<Number>(*column_.missing);
      if (std::numeric_limits<Number>::has_quiet_NaN) return std::numeric_limits<Number>::quiet_NaN();
      fail(path_, field.place, "no value in column '", column_.name, "', and whole numbers have no NaN. Say what ",
           "it becomes with CsvColumn.missing, or read the column as kFloat.");
    }
    Number number = 0;
    const std::errc error = parse(text, number);
    if constexpr (std::is_floating_point_v<Number>) {
      // Too near to 0 for a double is 0; too far from it is an error.
      long double wide = 0;
      if (error == std::errc::result_out_of_range && parse(text, wide) == std::errc() && std::abs(wide) < 1) {
        return static_cast<Number>(wide);
      }
    }
    if (error == std::errc()) return number;
    fail(path_, field.place, "'", text.substr(0, 60), "' in column '", column_.name,
         error == std::errc::result_out_of_range ? "' does not fit " : "' is not ", expected,
         ". Correct it, or name it in CsvOptions.missing.");
  }
  float single(const Field& field) const {
    const auto wide = number<double>(field, "a number");
    const auto value = static_cast<float>(wide);
    if (std::isinf(value) && !std::isinf(wide)) {
      fail(path_, field.place, "'", trimmed(field.text).substr(0, 60), "' in column '", column_.name,
           "' does not fit float32. Read the column as kDouble, or name it in CsvOptions.missing.");
    }
    return value;
  }
  template <class Number>
  static at::Tensor copied(const std::vector<Number>& values, at::ScalarType dtype) {
    const at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, dtype);
    if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), tensor.nbytes());
    return tensor;
  }

  const std::string& path_;
  CsvColumn column_;
  std::vector<std::string> missing_;
  size_t position_;
  std::vector<std::string> texts_;
  std::vector<int64_t> integers_;
  std::vector<float> floats_;
  std::vector<double> doubles_;
};

std::vector<std::string> names_of(const std::string& path, const std::vector<Field>& first, bool header) {
  std::vector<std::string> names;
  for (const Field& field : first) {
    if (header && std::find(names.begin(), names.end(), field.text) != names.end()) {
      fail(path, field.place, "the header names '", field.text, "' twice. Rename one of them.");
    }
    names.push_back(header ? field.text : text(names.size()));
  }
  return names;
}

std::vector<Column> columns_of(const std::string& path, const std::vector<std::string>& names,
                               const CsvOptions& options) {
  std::vector<CsvColumn> requested = options.columns;
  if (requested.empty()) {
    for (const std::string& name : names) requested.push_back({name, CsvType::kText, {}});
  }
  std::set<std::string> seen;
  std::vector<Column> columns;
  for (const CsvColumn& column : requested) {
    const auto found = std::find(names.begin(), names.end(), column.name);
    if (found == names.end()) {
      throw UsageError(kOrigin, "'", path, "' has no column '", column.name, "'", guess_end(column.name, names),
                       " It has: ", join(names), ". Correct the name.");
    }
    if (!seen.insert(column.name).second) {
      throw UsageError(kOrigin, "CsvOptions.columns names '", column.name, "' twice. Leave one out.");
    }
    columns.emplace_back(path, column, options, static_cast<size_t>(found - names.begin()));
  }
  return columns;
}

}  // namespace

CsvTable::CsvTable(const std::string& path, const CsvOptions& options) {
  if (options.separator == '"' || options.separator == '\n' || options.separator == '\r') {
    throw UsageError(kOrigin, "CsvOptions.separator is a quote or a line end, expected ',' or the like.");
  }
  const auto file = open_data_file(path, "a CSV file");
  RecordReader reader(path, file->bytes(), options.separator);
  std::vector<Field> fields;
  bool more = reader.next(fields);
  if (!more && (options.header || !options.columns.empty())) {
    throw DataError(kOrigin, path, "'", path, "' is empty, expected a ", options.header ? "header" : "record",
                    ". Check the path.");
  }
  const auto names = names_of(path, fields, options.header);
  auto columns = columns_of(path, names, options);
  const auto contents = std::make_shared<Contents>();
  contents->path = path;
  if (options.header) more = reader.next(fields);
  for (; more; more = reader.next(fields)) {
    if (fields.size() != names.size()) {
      fail(path, fields[std::min(fields.size() - 1, names.size())].place, "a record of ", fields.size(),
           " fields, expected ", names.size(), " as in the ", options.header ? "header" : "first record",
           ". Put fields that hold '", options.separator, "' in quotes.");
    }
    for (Column& column : columns) column.add(fields);
    ++contents->num_rows;
  }
  for (Column& column : columns) {
    if (column.is_text()) {
      contents->texts.emplace(column.name(), column.take_texts());
    } else {
      contents->numbers.emplace(column.name(), column.tensor());
    }
  }
  contents_ = contents;
}

void CsvTable::throw_no_column(const std::string& name, bool numbers) const {
  const bool other = numbers ? all_texts().contains(name) : all_numbers().contains(name);
  std::vector<std::string> names;
  for (const auto& [known, unused] : all_numbers()) names.push_back(known);
  for (const auto& [known, unused] : all_texts()) names.push_back(known);
  throw UsageError(kOrigin, "'", contents_->path, "' was read without a column '", name, "' of ",
                   numbers ? "numbers" : "texts",
                   other ? text("; it holds ", numbers ? "texts." : "numbers.") : guess_end(name, names),
                   " Read were: ", join(names), ". Name it in CsvOptions.columns.");
}

at::Tensor CsvTable::operator[](const std::string& name) const {
  const auto found = all_numbers().find(name);
  if (found == all_numbers().end()) throw_no_column(name, true);
  return found->second;
}

at::Tensor CsvTable::matrix(const std::vector<std::string>& names) const {
  if (names.empty()) throw UsageError(kOrigin, "a matrix of no columns. Name one at least.");
  std::vector<at::Tensor> columns;
  for (const std::string& name : names) columns.push_back((*this)[name].to(at::kFloat));
  return at::stack(columns, 1);
}

const std::vector<std::string>& CsvTable::texts(const std::string& name) const {
  const auto found = all_texts().find(name);
  if (found == all_texts().end()) throw_no_column(name, false);
  return found->second;
}

CsvBatch CsvDataset::get_batch(c10::ArrayRef<size_t> indices) {
  for (const size_t index : indices) check_index(index, table_.num_rows(), "a CSV table");
  CsvBatch batch;
  for (const auto& [name, values] : table_.all_numbers()) batch.numbers.emplace(name, gather_rows(values, indices));
  for (const auto& [name, values] : table_.all_texts()) {
    auto& texts = batch.texts[name];
    texts.reserve(indices.size());
    for (const size_t index : indices) texts.push_back(values[index]);
  }
  return batch;
}

}  // namespace hasten::data
