# Bunny: what a Ruby program does with RabbitMQ.
#
# AMQP is the broker's address. `bunny` must be there (Debian's ruby-bunny, or its gem).

require "bunny"
require "json"
require "timeout"

HOST, PORT = ENV.fetch("AMQP").split(":")
CHECKS = []

def check(name, &block)
  CHECKS << [name, block]
end

def same(found, expected, what)
  raise "#{what}: expected #{expected.inspect}, found #{found.inspect}" unless found == expected
end

# A name that nobody else has.
def name(kind)
  @names = (@names || 0) + 1
  "#{kind}-#{Process.pid}-#{@names}"
end

def connected(**more)
  connection = Bunny.new(host: HOST, port: PORT.to_i, log_level: Logger::FATAL, **more)
  connection.start
  yield connection
ensure
  connection.close if connection&.open?
end

def channel(**more)
  connected(**more) { |connection| yield connection.create_channel }
end

def take(queue, number)
  got = Queue.new
  consumer = queue.subscribe(manual_ack: true) { |info, props, body| got << [info, props, body] }
  all = Array.new(number) { Timeout.timeout(20) { got.pop } }
  [all, consumer]
end

check "a work queue with manual acknowledgements and a prefetch" do
  channel do |on|
    on.prefetch(5)
    queue = on.queue(name("queue"), durable: true)
    50.times { |n| queue.publish(n.to_s, persistent: true) }
    got = Queue.new
    queue.subscribe(manual_ack: true) do |info, _, body|
      on.ack(info.delivery_tag)
      got << body
    end
    bodies = Array.new(50) { Timeout.timeout(20) { got.pop } }
    same(bodies, (0...50).map(&:to_s), "bodies")
    queue.delete
  end
end

check "confirms" do
  channel do |on|
    on.confirm_select
    queue = on.queue("", exclusive: true)
    200.times { |n| queue.publish("x" * (n * 50), persistent: true) }
    same(on.wait_for_confirms, true, "all are confirmed")
    same(on.nacked_set.size, 0, "refused")
    same(queue.message_count, 200, "messages")
  end
end

check "topic, fanout and headers exchanges" do
  channel do |on|
    all = [on.topic(name("topic"), auto_delete: true), on.fanout(name("fanout"), auto_delete: true),
           on.headers(name("headers"), auto_delete: true)]
    queues = all.map { on.queue("", exclusive: true) }
    queues[0].bind(all[0], routing_key: "a.*.c")
    queues[1].bind(all[1])
    queues[2].bind(all[2], arguments: { "x-match" => "all", "kind" => "one", "n" => 1 })
    all[0].publish("yes", routing_key: "a.b.c")
    all[0].publish("no", routing_key: "a.b")
    all[1].publish("all")
    all[2].publish("match", headers: { "kind" => "one", "n" => 1, "more" => true })
    all[2].publish("none", headers: { "kind" => "two", "n" => 1 })
    same(queues.map { |q| q.pop[2] }, %w[yes all match], "what each got")
    same(queues.map { |q| q.pop[2] }, [nil, nil, nil], "and no more")
  end
end

check "properties and headers of every kind" do
  channel do |on|
    queue = on.queue("", exclusive: true)
    time = Time.at(1_700_000_000)
    headers = { "text" => "ä", "int" => 7, "big" => 2**40, "true" => true, "nil" => nil,
                "float" => 1.5, "time" => time, "list" => [1, "two", [3]],
                "table" => { "inner" => { "n" => -1 } } }
    queue.publish("body", headers: headers, content_type: "text/plain", correlation_id: "c",
                          reply_to: "r", message_id: "m", type: "t", app_id: "a", priority: 3,
                          timestamp: 1_700_000_000, expiration: "60000")
    _, properties, body = queue.pop
    same(body, "body", "body")
    # Its strings come as bytes.
    same(properties.headers, headers.merge("text" => "ä".b), "headers")
    same([properties.content_type, properties.correlation_id, properties.reply_to,
          properties.message_id, properties.type, properties.app_id, properties.priority,
          properties.timestamp, properties.expiration],
         ["text/plain", "c", "r", "m", "t", "a", 3, time, "60000"], "properties")
  end
end

check "what is given back comes again, and what is rejected goes to the dead letters" do
  channel do |on|
    dead = on.queue("", exclusive: true)
    arguments = { "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => dead.name }
    queue = on.queue("", exclusive: true, arguments: arguments)
    queue.publish("one")
    info, = queue.pop(manual_ack: true)
    same(info.redelivered?, false, "the first time")
    on.nack(info.delivery_tag, false, true)
    info, = queue.pop(manual_ack: true)
    same(info.redelivered?, true, "the second time")
    on.reject(info.delivery_tag, false)
    found, = take(dead, 1)
    _, properties, body = found[0]
    death = properties.headers["x-death"][0]
    same([body, death["reason"], death["queue"], death["count"]],
         ["one", "rejected", queue.name, 1], "the letter")
  end
end

check "messages without a queue come back" do
  channel do |on|
    came = Queue.new
    exchange = on.default_exchange
    exchange.on_return { |info, _, body| came << [info.reply_code, info.reply_text, body] }
    exchange.publish("lost", routing_key: name("nobody"), mandatory: true)
    same(Timeout.timeout(20) { came.pop }, [312, "NO_ROUTE", "lost"], "what came back")
  end
end

check "priorities" do
  channel do |on|
    queue = on.queue("", exclusive: true, arguments: { "x-max-priority" => 9 })
    [1, 9, 5, 0].each { |level| queue.publish(level.to_s, priority: level) }
    same(Array.new(4) { queue.pop[2] }, %w[9 5 1 0], "the order")
  end
end

check "transactions" do
  channel do |on|
    queue = on.queue("", exclusive: true)
    on.tx_select
    queue.publish("kept")
    on.tx_commit
    queue.publish("dropped")
    on.tx_rollback
    same([queue.pop[2], queue.pop[2]], ["kept", nil], "what is there")
  end
end

check "a request and its answer" do
  channel do |on|
    server = on.queue("", exclusive: true)
    server.subscribe do |_, properties, body|
      on.default_exchange.publish(body.upcase, routing_key: properties.reply_to,
                                               correlation_id: properties.correlation_id)
    end
    answers = Queue.new
    asking = on.connection.create_channel
    direct = asking.queue("amq.rabbitmq.reply-to", no_declare: true)
    direct.subscribe { |_, properties, body| answers << [properties.correlation_id, body] }
    asking.default_exchange.publish("question", routing_key: server.name, correlation_id: "7",
                                                reply_to: "amq.rabbitmq.reply-to")
    same(Timeout.timeout(20) { answers.pop }, ["7", "QUESTION"], "the answer")
  end
end

check "a cancelled consumer hears of it, and others go on" do
  channel do |on|
    queue = on.queue(name("queue"))
    cancelled = Queue.new
    consumer = Bunny::Consumer.new(on, queue)
    consumer.on_cancellation { cancelled << true }
    queue.subscribe_with(consumer)
    connected { |other| other.create_channel.queue_delete(queue.name) }
    same(Timeout.timeout(20) { cancelled.pop }, true, "told")
    same(on.queue("", exclusive: true).message_count, 0, "the channel goes on")
  end
end

check "refusals have RabbitMQ's codes" do
  connected do |connection|
    begin
      connection.create_channel.queue(name("nobody"), passive: true)
      raise "it was there"
    rescue Bunny::NotFound => error
      same(error.channel_close.reply_code, 404, "code")
    end
    title = name("queue")
    connection.create_channel.queue(title, exclusive: true)
    begin
      connection.create_channel.queue(title, exclusive: true, auto_delete: true)
      raise "it was the same"
    rescue Bunny::PreconditionFailed => error
      same(error.channel_close.reply_code, 406, "code")
    end
  end
  begin
    connected(pass: "wrong") { raise "it was let in" }
  rescue Bunny::AuthenticationFailureError, Bunny::PossibleAuthenticationFailureError
    nil
  end
end

check "twenty threads with a channel each" do
  connected do |connection|
    queue = connection.create_channel.queue("", exclusive: true)
    threads = Array.new(20) do |thread|
      Thread.new do
        on = connection.create_channel
        on.confirm_select
        100.times { |n| on.default_exchange.publish("#{thread}-#{n}", routing_key: queue.name) }
        on.wait_for_confirms
      end
    end
    same(threads.map(&:value).uniq, [true], "confirmed")
    all, = take(queue, 2000)
    same(all.map { |_, _, body| body }.uniq.size, 2000, "different messages")
  end
end

failed = CHECKS.count do |title, block|
  start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  error = nil
  begin
    block.call
  rescue StandardError => error
    warn error.full_message(highlight: false)
  end
  took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - start
  verdict = error ? "FAILED  bunny: #{title}: #{error.message}" : "ok      bunny: #{title}"
  puts "#{verdict} (#{took.round(1)} s)"
  error
end
exit(failed.zero?)
