// An HTTP server for tests, at a free port of the loopback address: hands each request to a function on one thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace hasten::testing {

struct HttpServerRequest {
  std::string method, path, body;
  std::map<std::string, std::string> headers;  // names as they came
};

struct HttpServerAnswer {
  int status = 200;
  std::string body = {};
  std::string headers = {};  // lines, each with its "\r\n"
  bool hang_up = false;      // closes the connection without an answer
};

class HttpServer {
 public:
  using Handler = std::function<HttpServerAnswer(const HttpServerRequest&)>;

  explicit HttpServer(Handler handler)
      : handler_(std::move(handler)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 64) != 0) std::abort();
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~HttpServer() {
    ends_ = true;
    thread_.join();
    close(listener_);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<HttpServerRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void run() {
    while (!ends_) {
      pollfd ready{listener_, POLLIN, 0};
      if (poll(&ready, 1, 20) <= 0) continue;
      const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) continue;
      serve(connection);
      close(connection);
    }
  }

  bool receive(int connection, std::string& bytes) {
    for (int i = 0; i < 250 && !ends_; ++i) {
      pollfd ready{connection, POLLIN, 0};
      if (poll(&ready, 1, 20) <= 0) continue;
      char piece[65536];
      const ssize_t n = recv(connection, piece, sizeof piece, 0);
      if (n > 0) bytes.append(piece, static_cast<size_t>(n));
      return n > 0;
    }
    return false;
  }

  void serve(int connection) {
    std::string bytes;
    while (bytes.find("\r\n\r\n") == std::string::npos) {
      if (!receive(connection, bytes)) return;
    }
    const size_t head = bytes.find("\r\n\r\n");
    HttpServerRequest request;
    size_t line = bytes.find("\r\n");
    const std::string first = bytes.substr(0, line);
    request.method = first.substr(0, first.find(' '));
    request.path = first.substr(request.method.size() + 1, first.rfind(' ') - request.method.size() - 1);
    while (line < head) {
      const size_t end = bytes.find("\r\n", line + 2);
      const std::string field = bytes.substr(line + 2, end - line - 2);
      if (const size_t colon = field.find(": "); colon != std::string::npos)
        request.headers[field.substr(0, colon)] = field.substr(colon + 2);
      line = end;
    }
    if (request.headers.count("Expect")) send(connection, "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL);
    const size_t length = request.headers.count("Content-Length") ? std::stoul(request.headers["Content-Length"]) : 0;
    while (bytes.size() < head + 4 + length) {
      if (!receive(connection, bytes)) return;
    }
    request.body = bytes.substr(head + 4, length);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const HttpServerAnswer answer = handler_(request);
    if (answer.hang_up) return;
    const std::string whole = "HTTP/1.1 " + std::to_string(answer.status) + " x\r\nConnection: close\r\n" +
                              answer.headers + "Content-Length: " + std::to_string(answer.body.size()) + "\r\n\r\n" +
                              (request.method == "HEAD" ? "" : answer.body);
    for (size_t sent = 0; sent < whole.size();) {
      const ssize_t n = send(connection, whole.data() + sent, whole.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }

  const Handler handler_;
  const int listener_;
  int port_ = 0;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::vector<HttpServerRequest> requests_;
};

}  // namespace hasten::testing
