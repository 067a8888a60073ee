// torchrun's error file; see error_file.h.
#include "launch/workers/error_file.h"

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "hasten/core/text.h"

namespace hasten::launcher {

using nlohmann::json;

namespace {

// The words are shown in a terminal and travel to other machines.
std::string shortened(const std::string& message) {
  if (message.size() <= kMaxMessageBytes) return message;
  return text(message.substr(0, kMaxMessageBytes), "\n… (the first ", kMaxMessageBytes, " of ", message.size(),
              " bytes)");
}

}  // namespace

std::optional<std::string> read_error_message(const std::string& path) {
  std::ifstream file(path);
  const json content = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!content.is_object() || !content.contains("message")) return std::nullopt;
  const json& message = content["message"];
  if (message.is_string()) return shortened(message.get<std::string>());
  if (message.is_object() && message.contains("message") && message["message"].is_string()) {
    return shortened(message["message"].get<std::string>());
  }
  return std::nullopt;
}

void write_error_file(const std::string& path, const std::string& message) {
  // torchrun's reader takes the time from extraInfo and shows py_callstack, where it is given, as the
  // traceback.
  const json content = {
      {"message", {{"message", message}, {"extraInfo", {{"timestamp", std::to_string(std::time(nullptr))}}}}}};
  std::ofstream(path) << content.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace hasten::launcher
