// Reads runs and makes the page; see board.h. The page's style and script are board.html.
#include "hasten/tracking/board/board.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "hasten/core/base64.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/number.h"
#include "hasten/tracking/board/commands.h"
#include "tracking/board/event_reader.h"
#include "tracking/follower/sink.h"
#include "tracking/journal/json.h"

#include "tracking_board_board_html.h"
#include "tracking_board_board_js.h"

namespace hasten::tracking {
namespace {

constexpr size_t kMostPoints = 2000;
constexpr size_t kMostImagesAKey = 40;
constexpr int64_t kMostImageBytes = 24 << 20;  // of the page

void drop_behind(std::map<std::string, Curve>& curves, double step) {
  for (auto& [key, curve] : curves) std::erase_if(curve, [&](const CurvePoint& point) { return point.step > step; });
}

void add_values(BoardRun& run, const Record& record) {
  const core::Value* values = record.body.find("values");
  if (values == nullptr) return;
  const auto step = static_cast<double>(record.step.value_or(0));
  for (const auto& [key, value] : flatten(values_of(*values))) {
    if (value.kind() == Value::Kind::kString) {
      run.texts.push_back({key, step, value.as_string()});
    } else {
      run.curves[key].push_back({step, record.time_s, value.as_number()});
    }
  }
}

void add_images(BoardRun& run, const Record& record, const std::filesystem::path& folder) {
  const core::Value* images = record.body.find("images");
  if (images == nullptr || !images->is_map()) return;
  for (const auto& [key, paths] : images->as_map()) {
    if (!paths.is_list()) continue;
    for (const core::Value& path : paths.as_list()) {
      // Read when the page is made: most are left out.
      if (path.is_string())
        run.images.push_back({key, static_cast<double>(record.step.value_or(0)), (folder / path.as_string()).string()});
    }
  }
}

void add_record(BoardRun& run, const Record& record, int rank, const std::filesystem::path& folder) {
  const auto word = [&](const char* key) {
    const core::Value* found = record.body.find(key);
    return found != nullptr && found->is_string() ? found->as_string() : "";
  };
  const auto note = [&](const std::string& level, const std::string& words) {
    run.notes.push_back({record.time_s, level, words});
  };
  if (record.op == "log") {
    add_values(run, record);
  } else if (record.op == "metrics") {
    const core::Value* values = record.body.find("values");
    if (values == nullptr) return;
    for (const auto& [key, value] : values_of(*values)) {
      if (value.is_number())
        run.ranks[rank][key].push_back({record.time_s - run.start_s, record.time_s, value.as_number()});
    }
  } else if (record.op == "start") {
    if (rank == 0) run.start_s = record.time_s;
  } else if (record.op == "config") {
    if (const core::Value* config = record.body.find("config")) run.config = *config;
  } else if (record.op == "images") {
    add_images(run, record, folder);
  } else if (record.op == "note") {
    note(word("level"), (rank > 0 ? text("rank ", rank, ": ") : "") + word("text"));
  } else if (record.op == "resume" && rank == 0) {
    if (record.step) drop_behind(run.curves, static_cast<double>(*record.step));
    run.end.clear();
    note("info", record.step ? text("goes on behind step ", *record.step) : "goes on");
  } else if (record.op == "finish" && rank == 0) {
    run.end = word("end");
    note(run.end == "finished" ? "info" : "warning", "end of the run: " + run.end);
  }
}

BoardRun read_journal_run(const std::filesystem::path& folder, const std::string& name) {
  BoardRun run{.name = name};
  std::vector<std::filesystem::path> journals;
  for (const auto& journal : find_journals(folder)) {
    if (journal.parent_path() == folder) journals.push_back(journal);
  }
  // journal.jsonl comes behind journal-rank1.jsonl in the order of paths.
  std::stable_partition(journals.begin(), journals.end(), [](const auto& path) { return path.stem() == "journal"; });
  for (const auto& journal : journals) {
    const std::string stem = journal.stem().string();
    const int rank = stem.starts_with("journal-rank") ? core::whole_number<int>(stem.substr(12)).value_or(0) : 0;
    JournalReader reader(journal);
    while (const auto record = reader.next()) add_record(run, *record, rank, folder);
    if (!reader.problems().empty()) {
      run.notes.push_back(
          {run.start_s, "warning",
           text(reader.problems().size(), " lines of ", journal.filename().string(), " are no records")});
    }
  }
  return run;
}

BoardRun read_event_run(const std::filesystem::path& folder, const std::string& name) {
  BoardRun run{.name = name};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().find("tfevents") != std::string::npos) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    const auto report = read_events(file, [&](EventValue value) {
      if (run.start_s == 0 || value.time_s < run.start_s) run.start_s = value.time_s;
      const auto step = static_cast<double>(value.step);
      switch (value.kind) {
        case EventValue::Kind::kScalar:
          run.curves[value.tag].push_back({step, value.time_s, value.number});
          break;
        case EventValue::Kind::kText:
          run.texts.push_back({value.tag, step, std::move(value.bytes)});
          break;
        case EventValue::Kind::kImage:
          run.images.push_back({value.tag, step, std::move(value.bytes)});
          break;
        case EventValue::Kind::kConfig:
          run.config = value.config;
          break;
        case EventValue::Kind::kRestart:
          drop_behind(run.curves, step - 1);
          break;
      }
    });
    if (!report.problem.empty())
      run.notes.push_back({run.start_s, "warning", file.filename().string() + ": " + report.problem});
  }
  return run;
}

// Folder of a run -> whether it has a journal.
std::map<std::filesystem::path, bool> find_run_folders(const std::filesystem::path& top) {
  std::map<std::filesystem::path, bool> folders;
  const auto look = [&](const std::filesystem::path& path) {
    const std::string name = path.filename().string();
    if (name == "journal.jsonl") folders[path.parent_path()] = true;
    if (name.find("tfevents") != std::string::npos) folders.try_emplace(path.parent_path(), false);
  };
  std::error_code failed;
  for (auto entry = std::filesystem::recursive_directory_iterator(
           top, std::filesystem::directory_options::skip_permission_denied, failed);
       !failed && entry != std::filesystem::recursive_directory_iterator(); entry.increment(failed)) {
    if (entry->is_regular_file(failed)) look(entry->path());
  }
  // The trackers' own files of a run with a journal have the same data again.
  std::erase_if(folders, [&](const auto& folder) {
    if (folder.second) return false;
    for (auto above = folder.first; above != above.parent_path(); above = above.parent_path()) {
      const auto found = folders.find(above);
      if (found != folders.end() && found->second) return true;
    }
    return false;
  });
  return folders;
}

void append_curve(std::string& out, const Curve& curve) {
  const Curve reduced = reduce_curve(curve, kMostPoints);
  const auto column = [&](auto member) {
    out += '[';
    for (size_t i = 0; i < reduced.size(); ++i) {
      if (i > 0) out += ',';
      const double number = reduced[i].*member;
      if (std::isfinite(number)) {
        append_json_number(out, number);
      } else {
        out += "null";
      }
    }
    out += ']';
  };
  out += '[';
  column(&CurvePoint::step);
  out += ',';
  column(&CurvePoint::time_s);
  out += ',';
  column(&CurvePoint::value);
  out += ']';
}

// Which of a run's images the page has: of each key the same number, evenly over the steps.
std::vector<BoardRun::Item> chosen_images(const BoardRun& run, int64_t& bytes_left) {
  std::map<std::string, std::vector<const BoardRun::Item*>> by_key;
  for (const auto& image : run.images) by_key[image.key].push_back(&image);
  std::vector<BoardRun::Item> chosen;
  for (const auto& [key, images] : by_key) {
    const size_t count = std::min(images.size(), kMostImagesAKey);
    for (size_t i = 0; i < count; ++i) {
      BoardRun::Item image = *images[count < 2 ? 0 : i * (images.size() - 1) / (count - 1)];
      if (!image.bytes.starts_with("\x89PNG")) image.bytes = core::read_file(image.bytes).value_or("");
      if (!image.bytes.starts_with("\x89PNG") || static_cast<int64_t>(image.bytes.size()) > bytes_left) continue;
      bytes_left -= static_cast<int64_t>(image.bytes.size());
      chosen.push_back(std::move(image));
    }
  }
  return chosen;
}

void append_curves(std::string& out, const std::map<std::string, Curve>& curves) {
  char separator = '{';
  for (const auto& [key, curve] : curves) {
    out += separator;
    append_json_string(out, key);
    out += ':';
    append_curve(out, curve);
    separator = ',';
  }
  out += curves.empty() ? "{}" : "}";
}

void append_run(std::string& out, const BoardRun& run, int64_t& image_bytes_left) {
  out += "{\"name\":";
  append_json_string(out, run.name);
  out += ",\"start\":";
  append_json_number(out, run.start_s);
  out += ",\"end\":";
  append_json_string(out, run.end);
  out += ",\"curves\":";
  append_curves(out, run.curves);
  out += ",\"ranks\":";
  char separator = '{';
  for (const auto& [rank, curves] : run.ranks) {
    out += text(separator, '"', rank, "\":");
    append_curves(out, curves);
    separator = ',';
  }
  out += run.ranks.empty() ? "{}" : "}";
  core::Value rest = core::Value::map({{"config", core::Value::map()},
                                       {"images", core::Value::list()},
                                       {"texts", core::Value::list()},
                                       {"notes", core::Value::list()}});
  for (const auto& [key, value] : flatten(run.config)) rest["config"][key] = value;
  for (const auto& image : chosen_images(run, image_bytes_left)) {
    rest["images"].push_back(core::Value::map(
        {{"key", image.key}, {"step", image.step}, {"src", "data:image/png;base64," + base64(image.bytes)}}));
  }
  for (size_t i = run.texts.size() > 200 ? run.texts.size() - 200 : 0; i < run.texts.size(); ++i) {
    rest["texts"].push_back(core::Value::map(
        {{"key", run.texts[i].key}, {"step", run.texts[i].step}, {"text", run.texts[i].bytes.substr(0, 20000)}}));
  }
  for (const auto& note : run.notes)
    rest["notes"].push_back(core::Value::map({{"t", note.time_s}, {"level", note.level}, {"text", note.text}}));
  std::string json;
  append_json(json, rest);
  out += ',' + json.substr(1);
}

// Base64 of the SHA-256 that CMake has computed in hex.
std::string script_hash() {
  std::string bytes;
  for (size_t i = 0; kBoardJsHash[i] != '\0' && kBoardJsHash[i + 1] != '\0'; i += 2) {
    bytes += static_cast<char>(core::whole_number<uint8_t>({kBoardJsHash + i, 2}, 16).value());
  }
  return base64(bytes);
}

void replace(std::string& page, const std::string& mark, const std::string& by) {
  const size_t at = page.find(mark);
  if (at != std::string::npos) page.replace(at, mark.size(), by);
}

}  // namespace

Curve reduce_curve(const Curve& curve, size_t most) {
  if (curve.size() <= most) return curve;
  Curve reduced = {curve.front()};
  const size_t num_buckets = (most - 2) / 2;
  const size_t inner = curve.size() - 2;
  for (size_t bucket = 0; bucket < num_buckets; ++bucket) {
    const auto first = curve.begin() + 1 + static_cast<std::ptrdiff_t>(bucket * inner / num_buckets);
    const auto last = curve.begin() + 1 + static_cast<std::ptrdiff_t>((bucket + 1) * inner / num_buckets);
    if (first == last) continue;
    // NaN is neither; the largest number represents a bucket that has some.
    const auto less = [](const CurvePoint& a, const CurvePoint& b) {
      return std::isnan(b.value) ? !std::isnan(a.value) : a.value < b.value;
    };
    const auto more = [](const CurvePoint& a, const CurvePoint& b) {
      return std::isnan(b.value) ? !std::isnan(a.value) : a.value > b.value;
    };
    const auto smallest = std::min_element(first, last, less), largest = std::min_element(first, last, more);
    if (smallest == largest) {
      reduced.push_back(*smallest);
    } else {
      reduced.push_back(smallest < largest ? *smallest : *largest);
      reduced.push_back(smallest < largest ? *largest : *smallest);
    }
  }
  reduced.push_back(curve.back());
  return reduced;
}

std::vector<BoardRun> read_runs(const std::vector<std::filesystem::path>& folders) {
  std::vector<BoardRun> runs;
  std::set<std::filesystem::path> seen;
  for (const auto& top : folders) {
    for (const auto& [folder, has_journal] : find_run_folders(top)) {
      if (!seen.insert(std::filesystem::weakly_canonical(folder)).second) continue;
      const auto relative = folder == top ? folder.filename() : std::filesystem::relative(folder, top);
      std::string name = folders.size() > 1 && folder != top ? (top.filename() / relative).string() : relative.string();
      if (name.empty() || name == ".") name = std::filesystem::absolute(folder).lexically_normal().filename().string();
      runs.push_back(has_journal ? read_journal_run(folder, name) : read_event_run(folder, name));
    }
  }
  if (runs.empty()) {
    throw DataError(
        Origin{"board"}, folders.empty() ? "" : folders.front().string(),
        folders.empty() ? std::string("no folder") : folders.front().string(),
        " holds no run: neither a journal (journal.jsonl) nor TensorBoard files (…tfevents…). Name a folder of runs.");
  }
  return runs;
}

std::string board_data(const std::vector<BoardRun>& runs, int64_t version, bool live) {
  std::string out = text("{\"version\":", version, ",\"live\":", live, ",\"runs\":[");
  int64_t image_bytes_left = kMostImageBytes;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i > 0) out += ',';
    append_run(out, runs[i], image_bytes_left);
  }
  out += "]}";
  // Nothing in a string can end the script element or begin a comment.
  for (size_t i = 0; (i = out.find('<', i)) != std::string::npos; i += 6) out.replace(i, 1, "\\u003c");
  return out;
}

std::string board_page(const std::string& data) {
  std::string page = kBoardHtml;
  replace(page, "@HASH@", script_hash());
  const std::string script = kBoardJs;
  replace(page, "@SCRIPT@", script);
  replace(page, "@DATA@", data);
  return page;
}

int64_t runs_version(const std::vector<std::filesystem::path>& folders) {
  int64_t version = 0;
  for (const auto& top : folders) {
    std::error_code failed;
    for (auto entry = std::filesystem::recursive_directory_iterator(
             top, std::filesystem::directory_options::skip_permission_denied, failed);
         !failed && entry != std::filesystem::recursive_directory_iterator(); entry.increment(failed)) {
      const std::string name = entry->path().filename().string();
      if (name.ends_with(".jsonl") || name.find("tfevents") != std::string::npos)
        version += static_cast<int64_t>(entry->file_size(failed));
    }
  }
  return version;
}

}  // namespace hasten::tracking
