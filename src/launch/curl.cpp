// HTTP by libcurl; see http.h. The library is loaded when an etcd rendezvous asks for it: linked, it and what
// it needs would take several times as long to load as the command takes to start.
#include <curl/curl.h>
#include <dlfcn.h>

#include "hasten/core/error.h"
#include "http.h"

namespace hasten::launcher {
namespace {

constexpr size_t kMostAnswerBytes = 1 << 20;

class Curl {
 public:
  explicit Curl(std::chrono::milliseconds patience) : library_(dlopen("libcurl.so.4", RTLD_NOW)) {
    if (library_ == nullptr) {
      throw UsageError({"launch"}, "the etcd rendezvous needs libcurl: ", dlerror(),
                       ". Install it (apt install libcurl4).");
    }
    load(init_, "curl_easy_init");
    load(setopt_, "curl_easy_setopt");
    load(perform_, "curl_easy_perform");
    load(getinfo_, "curl_easy_getinfo");
    load(strerror_, "curl_easy_strerror");
    handle_ = init_();
    setopt_(handle_, CURLOPT_TIMEOUT_MS, static_cast<long>(patience.count()));
    setopt_(handle_, CURLOPT_NOSIGNAL, 1L);
    setopt_(handle_, CURLOPT_PROXY, "");  // etcd is in the cluster
    setopt_(handle_, CURLOPT_WRITEFUNCTION, &Curl::take);
  }

  HttpAnswer post(const std::string& url, const std::string& body) {
    HttpAnswer answer;
    setopt_(handle_, CURLOPT_URL, url.c_str());
    setopt_(handle_, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
    setopt_(handle_, CURLOPT_POSTFIELDS, body.c_str());
    setopt_(handle_, CURLOPT_WRITEDATA, &answer.text);
    const CURLcode code = perform_(handle_);
    long status = 0;
    getinfo_(handle_, CURLINFO_RESPONSE_CODE, &status);
    answer.status = code == CURLE_OK ? static_cast<int>(status) : 0;
    if (code != CURLE_OK) answer.error = strerror_(code);
    return answer;
  }

 private:
  template <class Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr)
      throw UsageError({"launch"}, "libcurl has no ", name, "; is it older than 7.56?");
  }

  static size_t take(const char* bytes, size_t size, size_t count, std::string* text) {
    if (text->size() + size * count > kMostAnswerBytes) return 0;
    text->append(bytes, size * count);
    return size * count;
  }

  void* library_;  // stays loaded: the process ends with it
  CURL* handle_ = nullptr;
  CURL* (*init_)() = nullptr;
  CURLcode (*setopt_)(CURL*, CURLoption, ...) = nullptr;
  CURLcode (*perform_)(CURL*) = nullptr;
  CURLcode (*getinfo_)(CURL*, CURLINFO, ...) = nullptr;
  const char* (*strerror_)(CURLcode) = nullptr;
};

}  // namespace

HttpPost make_http_post(std::chrono::milliseconds patience) {
  auto curl = std::make_shared<Curl>(patience);
  return [curl](const std::string& url, const std::string& body) { return curl->post(url, body); };
}

}  // namespace hasten::launcher
