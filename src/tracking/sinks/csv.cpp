// See csv.h. The long form (a row a value) lets keys appear late. The file is cut to the acknowledged length when a
// follower goes on, so each row is there once.
#include "tracking/sinks/csv.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <string_view>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/number.h"
#include "tracking/journal/json.h"

namespace hasten::tracking {
namespace {

std::string quoted(std::string text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  for (size_t i = 0; (i = text.find('"', i)) != std::string::npos; i += 2) text.insert(i, 1, '"');
  return "\"" + text + "\"";
}

std::string number_text(const core::Value& value) {
  std::string json;
  append_json(json, value);
  if (value.is_string()) return quoted(value.as_string());
  json.erase(std::remove(json.begin(), json.end(), '"'), json.end());  // NaN and Infinity
  return quoted(json);
}

constexpr std::string_view kHead = "step,time,key,value\n";

// Rows of a file, each with its line end; a quoted value may have line ends as well.
std::vector<std::string_view> rows_of(std::string_view text) {
  std::vector<std::string_view> rows;
  size_t begin = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    is_quoted ^= text[i] == '"';
    if (text[i] != '\n' || is_quoted) continue;
    rows.push_back(text.substr(begin, i + 1 - begin));
    begin = i + 1;
  }
  return rows;
}

class Csv : public Tracker {
 public:
  const TrackerTraits& traits() const noexcept override { return traits_; }

  void resume(const core::Value& state) override {
    if (const auto* length = state.find("length")) length_ = length->as_int();
  }

  void start(const RunInfo& run) override {
    folder_ = run.rank == 0 ? run.folder : run.folder / text("rank_", run.rank);
    std::error_code failed;
    std::filesystem::create_directories(folder_, failed);
    path_ = folder_ / "metrics.csv";
    const bool goes_on = length_ > 0 && std::filesystem::exists(path_, failed);
    // A file that is shorter was written anew by a rewind, whose record follows again.
    if (goes_on) length_ = std::min(length_, static_cast<int64_t>(std::filesystem::file_size(path_)));
    if (goes_on) std::filesystem::resize_file(path_, static_cast<uintmax_t>(length_));
    file_.open(path_, std::ios::binary | (goes_on ? std::ios::app : std::ios::trunc));
    if (!goes_on) {
      length_ = 0;
      write(std::string(kHead));
    }
    require();
  }

  void store_init_configuration(const core::Value& config) override {
    std::ofstream file(folder_ / "config.csv", std::ios::binary);
    file << "key,value\n";
    for (const auto& [key, value] : flatten(config)) file << quoted(key) << ',' << number_text(value) << '\n';
  }

  void log(const Values& values, int64_t step, const core::Value&) override {
    for (const auto& [key, value] : flatten(values)) {
      std::string row;
      append_json_number(row, step);
      row += ',';
      append_json_number(row, time_s());
      row += ',' + quoted(key) + ',';
      row += value.kind() == Value::Kind::kString ? quoted(value.as_string()) : number(value);
      write(row + "\n");
    }
    require();
  }

  // Writes the file anew without the rows behind the step. A row that a follower's restart has doubled stays once.
  bool rewind(int64_t step) override {
    file_.close();
    const std::string text = core::read_file(path_).value_or("");
    const std::filesystem::path fresh = path_.string() + ".new";
    std::ofstream after(fresh, std::ios::binary | std::ios::trunc);
    std::set<std::string_view> seen;
    length_ = 0;
    for (const std::string_view row : rows_of(text)) {
      const auto of_row = core::whole_number<int64_t>(row.substr(0, row.find(',')));
      if ((of_row && *of_row > step) || !seen.insert(row).second) continue;
      after << row;
      length_ += static_cast<int64_t>(row.size());
    }
    after.close();
    std::error_code failed;
    if (after) std::filesystem::rename(fresh, path_, failed);
    file_.open(path_, std::ios::binary | std::ios::app);
    if (!after || failed) file_.setstate(std::ios::failbit);
    require();
    return true;
  }

  core::Value flush() override {
    file_.flush();
    require();
    return core::Value::map({{"length", length_}});
  }

 private:
  static std::string number(const Value& value) {
    if (value.kind() == Value::Kind::kInt) return text(value.as_int());
    return number_text(value.as_number());
  }
  void write(const std::string& bytes) {
    file_ << bytes;
    length_ += static_cast<int64_t>(bytes.size());
  }
  void require() const {
    if (!file_) {
      throw DataError(Origin{"tracking"}, path_, path_, " cannot be written: ", std::strerror(errno),
                      ". Make room, or choose another logging_dir.");
    }
  }

  const TrackerTraits traits_ = {"csv", true};
  std::filesystem::path folder_, path_;
  std::ofstream file_;
  int64_t length_ = 0;
};

}  // namespace

std::unique_ptr<Tracker> make_csv(const core::Value&, const Environment&) {
  return std::make_unique<Csv>();
}

std::vector<std::string> csv_options() {
  return {};
}

}  // namespace hasten::tracking
