// What of HTTP needs no libcurl; see http.h.
#include "hasten/core/http.h"

#include "hasten/core/base64.h"

namespace hasten::http {

std::string Response::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

std::string basic_authorization(std::string_view user, std::string_view password) {
  std::string both(user);
  both.append(":").append(password);
  return "Basic " + base64(both);
}

std::string percent_encoded(std::string_view text, std::string_view keep) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  constexpr const char* kHex = "0123456789ABCDEF";
  std::string encoded;
  for (const char letter : text) {
    if (kPlain.find(letter) != std::string_view::npos || keep.find(letter) != std::string_view::npos) {
      encoded += letter;
    } else {
      const auto byte = static_cast<unsigned char>(letter);
      encoded.append({'%', kHex[byte >> 4], kHex[byte & 15]});
    }
  }
  return encoded;
}

}  // namespace hasten::http
