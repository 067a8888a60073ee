// Files that a run of survived_program.h leaves: saves and tracked runs, as lines that two runs are compared by.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/tracking/journal/journal.h"

namespace hasten::survived {

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string project_folder() {
  return std::string(std::getenv("TMPDIR")) + "/project";
}

/// The saves of the run, `with_contents` their hashes as well. Each is verified; other words stand for a torn one.
inline std::string saves_of_run(bool with_contents) {
  std::ostringstream out;
  std::map<std::string, std::string> saves;
  for (const auto& entry : std::filesystem::directory_iterator(project_folder() + "/checkpoints")) {
    const std::string name = entry.path().filename(), folder = entry.path();
    if (name == ".hasten.lock") continue;
    std::ostringstream one;
    try {
      const auto manifest = files::read_manifest(folder);
      one << (files::verify_folder(folder).errors.empty() ? "whole " : "damaged ") << manifest.step << ' '
          << manifest.iteration;
      for (const auto& tensor : manifest.tensors) {
        if (tensor.info.name.starts_with("custom.mean")) continue;  // of the rank whose state all took
        for (const auto& piece : tensor.pieces) one << ' ' << tensor.info.name << ' ' << piece.xxh3.hex();
      }
    } catch (const Error& error) {
      one << "torn " << error.what();
    }
    saves[name] = one.str();
  }
  for (const auto& [name, words] : saves) {
    if (with_contents || !words.starts_with("whole")) out << name << ' ' << words << '\n';
  }
  return out.str() + (saves.empty() ? "no saves\n" : "");
}

/// What the project's runs have logged, and how often TensorBoard has it.
inline std::string tracked_runs() {
  std::ostringstream out;
  for (const auto& run : std::filesystem::directory_iterator(project_folder() + "/tracked")) {
    std::map<int64_t, std::string> losses;
    tracking::JournalReader reader(run.path() / "journal.jsonl");
    while (const auto record = reader.next()) {
      if (record->op == "log") losses[record->step.value_or(-1)] = record->body.at("values").to_json();
    }
    out << "a run\n";
    for (const auto& [step, values] : losses) out << "step " << step << ' ' << values << '\n';
    int64_t shown = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(run.path())) {
      if (file.path().filename().string().find("tfevents") == std::string::npos) continue;
      const std::string bytes = contents(file.path());
      for (size_t at = 0; (at = bytes.find("loss", at)) != std::string::npos; ++at) ++shown;
    }
    out << (shown >= static_cast<int64_t>(losses.size()) ? "all shown\n" : text("shown ", shown, '\n'));
  }
  return out.str();
}

}  // namespace hasten::survived
