'use strict';
// RocketMQ's Node client (gRPC) as a process: what to be comes as one JSON argument, messages to send come as JSON lines,
// and what happened goes out as JSON lines. See ../drivers.py.

const readline = require('readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const options = JSON.parse(process.argv[2]);
const say = event => process.stdout.write(JSON.stringify(event) + '\n');
const quiet = { info() {}, debug() {}, warn() {}, error(...what) { process.stderr.write(what.join(' ') + '\n'); } };
const signed = options.accessKey
  ? { sessionCredentials: { accessKey: options.accessKey, accessSecret: options.secretKey } } : {};
const common = { endpoints: options.endpoints, namespace: '', logger: quiet, ...signed };
const lines = readline.createInterface({ input: process.stdin });
const INVISIBLE_MS = 10000;
const COMMIT = 1; // TransactionResolution, which the package does not export
const SQL = 2; // FilterType, likewise

const got = message => ({
  got: message.body.toString(), topic: message.topic, tag: message.tag || '', keys: message.keys.join(' '),
  messageGroup: message.messageGroup || '', priority: message.priority, id: message.messageId, properties: Object.fromEntries(message.properties),
  times: (message.deliveryAttempt || 1) - 1, corrupted: message.corrupted, at: Date.now(),
});

async function produce() {
  const checker = { async check(message) {
    say({ checked: message.body.toString() });
    return COMMIT;
  } };
  const producer = new Producer({ ...common, topics: options.topics || [], checker });
  await producer.startup();
  say({ ready: true });
  for await (const line of lines) {
    const order = JSON.parse(line);
    const message = { topic: order.topic, body: Buffer.from(order.body || '') };
    if (order.tag) message.tag = order.tag;
    if (order.keys) message.keys = [ order.keys ];
    if (order.messageGroup) message.messageGroup = order.messageGroup;
    if (order.delayMs) message.delay = order.delayMs;
    if ('priority' in order) message.priority = order.priority;
    if (order.properties) message.properties = new Map(Object.entries(order.properties));
    try {
      let receipt;
      if (order.recall) {
        say({ recalled: (await producer.recallMessage(order.topic, order.recall)).messageId });
        continue;
      } else if (order.transaction) {
        const transaction = producer.beginTransaction();
        receipt = await producer.send(message, transaction);
        if (order.transaction === 'commit') await transaction.commit();
        if (order.transaction === 'rollback') await transaction.rollback();
      } else {
        receipt = await producer.send(message);
      }
      say({ sent: order.body, id: receipt.messageId, offset: Number(receipt.offset), recallHandle: receipt.recallHandle });
    } catch (error) {
      say({ failed: order.body, why: `${error}` });
    }
  }
  await producer.shutdown();
}

const subscriptions = () => new Map([[ options.topic,
  options.isSql ? new FilterExpression(options.expression, SQL) : options.expression || '*' ]]);

async function push() {
  const messageListener = { async consume(message) {
    say(got(message));
    if (message.body.toString().startsWith('slow')) {
      await new Promise(resolve => setTimeout(resolve, options.slowS * 1000));
      say({ consumed: message.body.toString() });
    }
    return message.body.toString().startsWith('poison') ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  } };
  const consumer = new PushConsumer({ ...common, consumerGroup: options.group, subscriptions: subscriptions(), messageListener });
  await consumer.startup();
  say({ ready: true });
  for await (const line of lines) say({ unknown: line });
  // Its shutdown waits for its receives: the test need not.
}

async function simple() {
  const consumer = new SimpleConsumer({
    ...common, consumerGroup: options.group, subscriptions: subscriptions(), awaitDuration: (options.awaitS || 5) * 1000,
  });
  await consumer.startup();
  say({ ready: true });
  let ended = false;
  const receiving = (async () => {
    while (!ended) {
      try {
        for (const message of await consumer.receive(options.batch || 16, (options.invisibleS * 1000) || INVISIBLE_MS)) {
          say(got(message));
          for (let left = options.renewals || 0; left > 0; left--) await consumer.changeInvisibleDuration(message, INVISIBLE_MS);
          if (!message.body.toString().startsWith('poison')) {
            await consumer.ack(message);
            say({ acked: message.messageId });
          }
        }
      } catch (error) {
        say({ error: `${error}` });
        await new Promise(resolve => setTimeout(resolve, 500));
      }
    }
  })();
  for await (const line of lines) say({ unknown: line });
  ended = true;
  void receiving;
}

({ producer: produce, consumer: push, simple }[options.kind])().then(
  () => process.exit(0),
  error => {
    process.stderr.write(`${error.stack}\n`);
    process.exit(1);
  },
);
