// See init_method.h.
#include "hasten/comm/init_method.h"

#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/number.h"

namespace hasten::comm {
namespace {

[[noreturn]] void refuse_address(const std::string& address, const std::string& what) {
  throw UsageError(
      Origin{"comm"}, "the init method '", address, "' ", what,
      "; expected env://, tcp://HOST:PORT or file:///PATH, with ?rank=R&world_size=N behind it if they are "
      "not given otherwise.");
}

int number_in(const std::string& address, const std::string& name, const std::string& word) {
  const auto number = core::whole_number<int>(word);
  if (!number || *number < 0) refuse_address(address, text("has ", name, " '", word, "', which is no number"));
  return *number;
}

void read_parameters(const std::string& address, const std::string& parameters, InitMethod& method) {
  std::istringstream parts(parameters);
  for (std::string part; std::getline(parts, part, '&');) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    const std::string word = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (name == "rank") {
      method.rank = number_in(address, name, word);
    } else if (name == "world_size") {
      method.world_size = number_in(address, name, word);
    } else {
      refuse_address(address, text("has the parameter '", name, "', which is none"));
    }
  }
}

// The value that all sources of it agree on.
int agreed(const char* name, std::initializer_list<std::optional<int>> sources, const std::string& address) {
  std::optional<int> value;
  for (const std::optional<int>& one : sources) {
    if (!one) continue;
    if (value && *value != *one) {
      throw UsageError(Origin{"comm"}, "the init method '", address, "' is given the ", name, "s ", *value, " and ",
                       *one, "; expected one. Give it once.");
    }
    value = one;
  }
  if (value) return *value;
  throw UsageError(Origin{"comm"}, "the init method '", address, "' lacks the ", name, "; expected InitOptions::", name,
                   ", '?", name, "=' in the address, or with env:// the variable.");
}

// The text of a variable that env:// cannot do without.
std::string needed(const Environment& environment, const char* variable) {
  if (const auto value = environment.text(variable)) return *value;
  throw UsageError(
      Origin{"comm"}, "the init method env:// needs ", variable,
      ", which is not set. Start the program with hasten launch, or set MASTER_ADDR, MASTER_PORT, RANK and "
      "WORLD_SIZE.");
}

}  // namespace

InitMethod parse_init_method(const std::string& address) {
  const size_t scheme_end = address.find("://");
  if (scheme_end == std::string::npos) refuse_address(address, "has no scheme");
  const std::string scheme = address.substr(0, scheme_end);
  const size_t question = address.find('?');
  const std::string place =
      address.substr(scheme_end + 3, question == std::string::npos ? question : question - scheme_end - 3);
  InitMethod method;
  if (question != std::string::npos) read_parameters(address, address.substr(question + 1), method);
  if (scheme == "env") {
    if (!place.empty()) refuse_address(address, text("has '", place, "' behind env://"));
  } else if (scheme == "tcp") {
    method.kind = InitMethod::Kind::kTcp;
    const size_t colon = place.rfind(':');
    if (colon == std::string::npos || colon == 0) refuse_address(address, "has no HOST:PORT");
    method.host = place.substr(0, colon);
    if (method.host.starts_with('[') && method.host.ends_with(']')) method.host = method.host.substr(1, colon - 2);
    method.port = number_in(address, "port", place.substr(colon + 1));
    if (method.port < 1 || method.port > 65535) refuse_address(address, text("has port ", method.port));
  } else if (scheme == "file") {
    method.kind = InitMethod::Kind::kFile;
    method.path = place;
    if (place.empty() || place.back() == '/') refuse_address(address, "names no file");
  } else {
    refuse_address(address, text("has the scheme '", scheme, "'", did_you_mean(scheme, {"env", "tcp", "file"})));
  }
  return method;
}

Group init_group(const std::string& address, const InitOptions& options, const Environment& environment) {
  const InitMethod method = parse_init_method(address);
  const bool from_environment = method.kind == InitMethod::Kind::kEnvironment;
  const auto variable = [&](const char* name) -> std::optional<int> {
    if (!from_environment || options.rank || options.world_size) return std::nullopt;
    const auto number = environment.integer(name, 0, INT32_MAX);
    return number ? std::optional(static_cast<int>(*number)) : std::nullopt;
  };
  const int rank = agreed("rank", {options.rank, method.rank, variable("RANK")}, address);
  const int world_size = agreed("world_size", {options.world_size, method.world_size, variable("WORLD_SIZE")}, address);
  if (world_size < 1 || rank >= world_size) {
    throw UsageError(Origin{"comm"}, "the init method '", address, "': rank ", rank, " of a world of ", world_size,
                     "; ranks go from 0 to world_size - 1.");
  }
  if (method.kind == InitMethod::Kind::kFile) {
    return Group::connect(Store::file(method.path, world_size), rank, world_size, options.group);
  }
  TcpStoreOptions tcp{.host = method.host, .port = method.port, .server = rank == 0, .timeout = options.group.timeout};
  if (from_environment) {
    tcp.host = needed(environment, "MASTER_ADDR");
    needed(environment, "MASTER_PORT");
    tcp.port = static_cast<int>(*environment.integer("MASTER_PORT", 1, 65535));
    tcp.server = rank == 0 && !environment.flag("TORCHELASTIC_USE_AGENT_STORE").value_or(false);
  }
  return Group::connect(Store::tcp(tcp), rank, world_size, options.group);
}

}  // namespace hasten::comm
