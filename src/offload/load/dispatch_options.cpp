// Options and reports of dispatching; see dispatch.h. The placing itself is dispatch.cpp's.
#include <algorithm>
#include <iomanip>
#include <locale>
#include <sstream>

#include "hasten/offload/load/dispatch.h"

namespace hasten::offload {

DeviceMap DeviceMapChoice::map_for(const ModuleTree& tree, const MapOptions& options) const {
  if (const auto* map = std::get_if<DeviceMap>(&choice_)) return *map;
  return device_map_by_name(tree, std::get<std::string>(choice_), options);
}

MapOptions DispatchOptions::map_options() const {
  MapOptions options;
  options.max_memory = max_memory;
  options.no_split_module_classes = no_split_module_classes;
  options.dtype = dtype;
  options.offload_buffers = offload_buffers;
  return options;
}

LoadOptions DispatchOptions::load_options() const {
  LoadOptions options;
  options.dtype = dtype;
  options.keep_in_fp32_modules = keep_in_fp32_modules;
  options.strict = strict;
  options.rename = rename;
  options.key_map = key_map;
  options.transpose = transpose;
  options.not_saved = not_saved;
  options.io = io;
  options.resident = resident;
  return options;
}

std::string Report::text() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << "model " << model_bytes << " bytes, limit " << budget_bytes << " bytes\n";
  size_t width = 30;
  for (const UnitReport& unit : units) width = std::max(width, unit.name.size());
  for (const UnitReport& unit : units) {
    out << std::left << std::setw(static_cast<int>(width)) << (unit.name.empty() ? "(root)" : unit.name) << "  "
        << std::setw(8) << plan::device_text(unit.device) << std::right << std::setw(14) << unit.bytes << "  "
        << std::left << std::setw(10) << unit.action << unit.reason << "\n";
  }
  return std::move(out).str();
}

}  // namespace hasten::offload
